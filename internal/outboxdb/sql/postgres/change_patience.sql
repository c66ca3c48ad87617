SELECT set_config('lock_timeout', '?1', true), set_config('enable_seqscan', 'off', true)
