"""The shared vocabulary: data only, no behaviour beyond validation and unit arithmetic.

Everything above this floor (measuring, deciding, moving, breaking, showing) speaks in these types:

    device, topology   what the machine is: devices, links, nodes (hardware: what else it tells of itself)
    media              what flows: pixel formats, video/packet/audio formats
    pipeline           what is asked for: operators, edges, constraints, quality of service
    contract           what each operator promises when a process dies
    plan               what was decided: placement and decision record
    cost               what a transfer costs: parameters and the formula
    event, record      what was seen: one frame event, one record per frame and hop (kinds: their names, apart)
    manifest           what a run was: the tables that give a record's numbers their names
    errors             the root of every package's error tree
"""
