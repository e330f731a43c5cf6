{% for table in var('activity_tables') %}
select source, coalesce(user_id, anonymous_id) as visitor, "timestamp" as happened_at, id
from {{ source('events', table) }}
where coalesce(user_id, anonymous_id) is not null
{{ "union all" if not loop.last }}
{% endfor %}
