"""The mean field of attention: measures, Gaussians and their limits [castin2025unified]."""
