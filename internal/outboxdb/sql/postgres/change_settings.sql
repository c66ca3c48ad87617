SELECT set_config('enable_seqscan', 'off', true)
