{%- set own = [
    'id', 'source', 'user_id', 'anonymous_id', 'received_at', 'sent_at', 'original_timestamp', 'timestamp', 'traits',
    'log_epoch', 'log_partition', 'log_offset', 'dt', '_rescued', 'call_number'
] -%}
select
    source || '/' || user_id as user_key,
    source,
    user_id,
    max(received_at) as last_identified_at
    {%- for column in adapter.get_columns_in_relation(ref('calls'))
        if column.name not in own and not column.name.startswith('context_') %},
    max_by({{ adapter.quote(column.name) }}, case when {{ adapter.quote(column.name) }} is not null then call_number end)
        as {{ adapter.quote(column.name) }}
    {%- endfor %}
from {{ ref('calls') }}
group by source, user_id
