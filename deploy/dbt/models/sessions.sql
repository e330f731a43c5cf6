with paused as (
    select
        *,
        lag(happened_at) over (partition by source, visitor order by happened_at, id) as before_it
    from {{ ref('activity') }}
),

numbered as (
    select
        *,
        sum(
            case
                when happened_at <= before_it + interval '{{ var("session_gap_minutes") }} minutes' then 0
                else 1
            end
        ) over (partition by source, visitor order by happened_at, id rows unbounded preceding) as session_number
    from paused
)

select
    source || '/' || visitor || '/' || cast(min(happened_at) as varchar) as session_id,
    source,
    visitor,
    min(happened_at) as began_at,
    max(happened_at) as ended_at,
    count(*) as events
from numbered
group by source, visitor, session_number
