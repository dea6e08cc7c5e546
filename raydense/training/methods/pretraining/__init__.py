"""The pre-training methods that come with raydense: a file for each."""
