"""Studies: many training runs that differ in one thing, and what their differences amount to."""
