SELECT set_config('statement_timeout', '?0', true), set_config('lock_timeout', '?1', true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)
