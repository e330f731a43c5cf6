select
    *,
    row_number() over (partition by source, user_id order by received_at, log_partition, log_offset) as call_number
from {{ source('events', 'identifies') }}
where user_id is not null
