"""Frame records: collected from the event rings, kept in LMDB, found again by PTS.

    keys           the byte layout of keys and values
    environment    one LMDB environment per process and folder: growth, full disks, damage, in words
    store, reader  FrameStore: runs, epochs, records, lost frames; a reader is one consistent snapshot of it
    ingest         bulk conversion of records into keys and values
    latency        end-to-end latency of frames, as a mergeable histogram
    collector      one run's event rings -> records -> store
    runs, views    a run's names and order of hops; what a look-up answers
    lookup         find, list, neighbours
    summary        slowest, stats

Nothing here is imported until it is asked for: a look-up needs neither NumPy nor Pydantic and starts in no time.
"""
