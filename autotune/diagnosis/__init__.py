"""The limits of training, and advice. Pure: no clock, no torch, no I/O."""
