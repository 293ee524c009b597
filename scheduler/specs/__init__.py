"""Pipeline specifications: the Media Pipeline Spec and foreign formats, read into `observatory.model.pipeline`."""
