"""training.data"""
