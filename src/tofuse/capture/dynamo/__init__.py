"""Programs as Dynamo hands them over: may they be compiled, when are they compiled again."""
