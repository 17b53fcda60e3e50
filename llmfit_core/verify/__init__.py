"""Is it still the same model?"""
