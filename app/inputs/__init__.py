"""Events from topics of Kafka: files of inputs, ids of their records, reading and admission."""
