"""Fuzzing: programs are generated, judged in a sandbox and shrunk."""
