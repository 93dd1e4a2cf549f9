"""Other people's pipelines: the only place that knows them. Slim networks come to them."""
