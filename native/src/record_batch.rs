//! Record format v1 of `dedupe.model.record` in record batches of Kafka's format 2.

use crate::faults::caught;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

const HEAD_BYTES: usize = 61;
const LENGTH_FROM: usize = 12;
const CRC_AT: usize = 17;
const CRC_FROM: usize = 21;
const GW_BYTES: usize = 38;
const VERSION: u8 = 1;
const FLAG_CHECKSUM: u8 = 16;
const FLAG_CLOUDEVENT: u8 = 64;

/// Returns the record batch of new events, as `build_record` and aiokafka's builder make it.
///
/// Returns None if an event has a session or a reason, or is a `CloudEvent`, or the batch has more than `bytes_max` bytes.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn encode<'py>(
    py: Python<'py>,
    events: &Bound<'py, PyList>,
    first_lane_seq: u64,
    timestamp_ms: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    bytes_max: usize,
) -> Option<Bound<'py, PyBytes>> {
    let batch = caught(|| {
        batch_of(events, first_lane_seq, timestamp_ms, producer_id, producer_epoch, base_sequence, bytes_max)
    })?;
    Some(PyBytes::new(py, &batch))
}

fn batch_of(
    events: &Bound<'_, PyList>,
    first_lane_seq: u64,
    timestamp_ms: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    bytes_max: usize,
) -> PyResult<Option<Vec<u8>>> {
    let mut out = vec![0; HEAD_BYTES];
    for (place, event) in events.iter().enumerate() {
        let event = event.cast::<PyTuple>()?;
        if !event.get_borrowed_item(7)?.is_none() || !event.get_borrowed_item(8)?.is_none() {
            return Ok(None);
        }
        if event.get_borrowed_item(6)?.extract::<u8>()? & FLAG_CLOUDEVENT != 0 {
            return Ok(None);
        }
        put_event(&mut out, event, place, first_lane_seq + place as u64)?;
        if out.len() > bytes_max {
            return Ok(None);
        }
    }
    let Ok(count) = i32::try_from(events.len()) else { return Ok(None) };
    let Ok(length) = i32::try_from(out.len() - LENGTH_FROM) else { return Ok(None) };
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend_from_slice(&0_i64.to_be_bytes()); // base offset
    head.extend_from_slice(&length.to_be_bytes());
    head.extend_from_slice(&(-1_i32).to_be_bytes()); // partition leader epoch
    head.push(2); // magic
    head.extend_from_slice(&[0; 4]); // CRC
    head.extend_from_slice(&0_i16.to_be_bytes()); // attributes
    head.extend_from_slice(&(count - 1).to_be_bytes());
    head.extend_from_slice(&timestamp_ms.to_be_bytes());
    head.extend_from_slice(&timestamp_ms.to_be_bytes());
    head.extend_from_slice(&producer_id.to_be_bytes());
    head.extend_from_slice(&producer_epoch.to_be_bytes());
    head.extend_from_slice(&base_sequence.to_be_bytes());
    head.extend_from_slice(&count.to_be_bytes());
    out[..HEAD_BYTES].copy_from_slice(&head);
    let crc = crc32c::crc32c(&out[CRC_FROM..]);
    out[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
    Ok(Some(out))
}

fn put_event(out: &mut Vec<u8>, event: &Bound<'_, PyTuple>, place: usize, lane_seq: u64) -> PyResult<()> {
    let bytes = |number| -> PyResult<_> { Ok(event.get_item(number)?.cast_into::<PyBytes>()?) };
    let text = |number| -> PyResult<_> { Ok(event.get_item(number)?.cast_into::<PyString>()?) };
    let (source, id, value) = (text(3)?, text(4)?, bytes(5)?);
    let (source, id, value) = (source.to_str()?.as_bytes(), id.to_str()?.as_bytes(), value.as_bytes());
    let mut gw = Vec::with_capacity(GW_BYTES);
    gw.push(VERSION);
    gw.push(event.get_borrowed_item(6)?.extract::<u8>()? | FLAG_CHECKSUM);
    gw.extend_from_slice(bytes(0)?.as_bytes());
    gw.extend_from_slice(bytes(2)?.as_bytes());
    gw.extend_from_slice(&lane_seq.to_be_bytes());
    let mut checksum = crc32fast::Hasher::new();
    for part in [source, id, &gw, value] {
        checksum.update(part);
    }
    gw.extend_from_slice(&checksum.finalize().to_be_bytes());
    let size = 1 // attributes
        + 1 // timestamp delta
        + varint_bytes(place)
        + bytes_size(id)
        + bytes_size(value)
        + 1 // number of headers
        + bytes_size(b"source") + bytes_size(source)
        + bytes_size(b"gw") + bytes_size(&gw);
    out.reserve(size + 8);
    put_varint(out, size);
    out.extend_from_slice(&[0, 0]);
    put_varint(out, place);
    put_bytes(out, id);
    put_bytes(out, value);
    put_varint(out, 2);
    for part in [b"source", source, b"gw", &gw] {
        put_bytes(out, part);
    }
    Ok(())
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn bytes_size(bytes: &[u8]) -> usize {
    varint_bytes(bytes.len()) + bytes.len()
}

/// Writes a number below 2^62 as a zigzag varint.
fn put_varint(out: &mut Vec<u8>, value: usize) {
    let mut rest = value << 1;
    while rest >= 0x80 {
        out.push((rest & 0x7f | 0x80).to_le_bytes()[0]);
        rest >>= 7;
    }
    out.push(rest.to_le_bytes()[0]);
}

fn varint_bytes(value: usize) -> usize {
    let bits = usize::BITS - (value << 1 | 1).leading_zeros();
    bits.div_ceil(7) as usize
}
