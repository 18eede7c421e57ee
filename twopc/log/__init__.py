"""The commit log: its entries, where they are stored, and what a batch read.

==============  ===========================================================================
module          what it knows
==============  ===========================================================================
entries         what the log's next entry is, and entries as JSON; no I/O
steps           what an append, an opening and a look at the tail take; no I/O
commit_log      takes the steps of an append on a store
store           where entries are stored: list, read, put-if-absent, delete
batch_identity  what a batch read, compared when the batch comes again
notices         what a coordinator waits for, in a file beside the log
history         every kept entry, as an operator sees it
==============  ===========================================================================
"""
