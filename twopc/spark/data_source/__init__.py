"""``format("twopc")``: a sink as a data source of Spark's."""
