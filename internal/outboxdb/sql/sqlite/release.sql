UPDATE outbox_partitions SET owner = NULL WHERE lane = ?2 AND part IN (SELECT value FROM json_each(?3)) AND owner = ?1
