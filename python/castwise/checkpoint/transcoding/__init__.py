"""Lay quantised weights anew, as another producer stores them, without decoding."""
