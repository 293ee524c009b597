"""The pages: each makes its layout from the API's answers and registers its callbacks."""
