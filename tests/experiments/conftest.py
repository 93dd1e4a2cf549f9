from tests.training.conftest import crops, tiny  # noqa: F401 - fixtures
