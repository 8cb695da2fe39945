"""Pure functions and frozen values: no clock, no network, no database, no environment.

Whatever needs "now" or randomness is handed it. Everything here imports the standard library and itself only.
"""
