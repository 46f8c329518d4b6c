"""Tests of myxtts/devicefeed that need nothing else of MyXTTS. They go with a copy of the library;
tests/test_devicefeed.py runs them so.
"""
