"""Is training worth it? What images and encoders show before a run, and the advice that follows from it."""
