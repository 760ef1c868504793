"""report.pages"""
