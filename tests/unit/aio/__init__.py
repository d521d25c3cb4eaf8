"""Tests of brokerd/aio."""
