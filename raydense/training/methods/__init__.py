"""The training methods that come with raydense: a file for each, with its settings and its loss; pre-training's in `pretraining/`."""
