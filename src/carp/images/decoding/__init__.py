"""From stored bytes to pixels, within limits."""
