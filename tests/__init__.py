"""The tests: `unit` mirrors src; `laws` holds the three laws; `peers` and `integration` are what they say."""
