//! Record format v1 of `dedupe.model.record` in record batches of Kafka's format 2.

use crate::faults::caught;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple, PyType};

const HEAD_BYTES: usize = 61;
const LENGTH_FROM: usize = 12;
const CRC_AT: usize = 17;
const CRC_FROM: usize = 21;
const GW_BYTES_MAX: usize = 94;
const HASH_BYTES: usize = 16;
const VERSION: u8 = 1;
const FLAG_SESSION: u8 = 1;
const FLAG_CHECKSUM: u8 = 16;
const FLAG_CLOUDEVENT: u8 = 64;
const HEADED: &str = "HeadedEvent";

/// Returns the record batch of new events, as `build_record` and aiokafka's builder make it.
///
/// An event of the class `HeadedEvent` has headers of its own for its record.
/// `sessions` has what is recorded of the session of each event, if any has one. Returns None if an event has a session
/// that is not recorded, or a reason, or is a `CloudEvent`, or the batch has more than `bytes_max` bytes.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
pub fn encode_records<'py>(
    py: Python<'py>,
    events: &Bound<'py, PyList>,
    sessions: Vec<Bound<'py, PyAny>>,
    first_lane_seq: u64,
    timestamp_ms: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    bytes_max: usize,
) -> Option<Bound<'py, PyBytes>> {
    let batch = caught(|| {
        batch_of(events, &sessions, first_lane_seq, timestamp_ms, producer_id, producer_epoch, base_sequence, bytes_max)
    })?;
    Some(PyBytes::new(py, &batch))
}

#[allow(clippy::too_many_arguments)]
fn batch_of(
    events: &Bound<'_, PyList>,
    sessions: &[Bound<'_, PyAny>],
    first_lane_seq: u64,
    timestamp_ms: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    bytes_max: usize,
) -> PyResult<Option<Vec<u8>>> {
    if !sessions.is_empty() && sessions.len() != events.len() {
        return Ok(None);
    }
    let mut out = vec![0; HEAD_BYTES];
    let mut kinds = Kinds::default();
    for (place, event) in events.iter().enumerate() {
        let event = event.cast::<PyTuple>()?;
        let session = match sessions.get(place) {
            Some(session) if !session.is_none() => Some(session.cast::<PyTuple>()?),
            _ => None,
        };
        let is_unrecorded = session.is_none() && !event.get_borrowed_item(7)?.is_none();
        if is_unrecorded || !event.get_borrowed_item(8)?.is_none() {
            return Ok(None);
        }
        if event.get_borrowed_item(6)?.extract::<u8>()? & FLAG_CLOUDEVENT != 0 {
            return Ok(None);
        }
        let headers = if kinds.is_headed(event)? { Some(event.getattr("headers")?) } else { None };
        let headers = headers.as_ref().map(|found| found.cast::<PyList>()).transpose()?;
        let is_put = put_event(&mut out, event, session, headers, place, first_lane_seq + place as u64)?;
        if !is_put || out.len() > bytes_max {
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

/// Which classes of events have headers; the last one seen is remembered, since most batches have one class.
#[derive(Default)]
struct Kinds<'py> {
    last: Option<(Bound<'py, PyType>, bool)>,
}

impl<'py> Kinds<'py> {
    fn is_headed(&mut self, event: &Bound<'py, PyTuple>) -> PyResult<bool> {
        let kind = event.get_type();
        if let Some((last, is_headed)) = &self.last {
            if last.is(&kind) {
                return Ok(*is_headed);
            }
        }
        let is_headed = kind.name()?.to_str()? == HEADED;
        self.last = Some((kind, is_headed));
        Ok(is_headed)
    }
}

/// Returns false if the session is odd.
fn put_event(
    out: &mut Vec<u8>,
    event: &Bound<'_, PyTuple>,
    session: Option<&Bound<'_, PyTuple>>,
    headers: Option<&Bound<'_, PyList>>,
    place: usize,
    lane_seq: u64,
) -> PyResult<bool> {
    let bytes = |number| -> PyResult<_> { Ok(event.get_item(number)?.cast_into::<PyBytes>()?) };
    let text = |number| -> PyResult<_> { Ok(event.get_item(number)?.cast_into::<PyString>()?) };
    let (source, id, value) = (text(3)?, text(4)?, bytes(5)?);
    let (source, id, value) = (source.to_str()?.as_bytes(), id.to_str()?.as_bytes(), value.as_bytes());
    let mut gw = Vec::with_capacity(GW_BYTES_MAX);
    gw.push(VERSION);
    let flags = event.get_borrowed_item(6)?.extract::<u8>()? | FLAG_CHECKSUM;
    gw.push(if session.is_some() { flags | FLAG_SESSION } else { flags });
    gw.extend_from_slice(bytes(0)?.as_bytes());
    gw.extend_from_slice(bytes(2)?.as_bytes());
    gw.extend_from_slice(&lane_seq.to_be_bytes());
    let mut progress = None;
    if let Some(session) = session {
        if !put_session(&mut gw, session)? {
            return Ok(false);
        }
        progress = progress_of(session)?;
    }
    let mut checksum = crc32fast::Hasher::new();
    for part in [source, id, &gw, value] {
        checksum.update(part);
    }
    gw.extend_from_slice(&checksum.finalize().to_be_bytes());
    let progress_size = progress.as_ref().map_or(0, |progress| bytes_size(b"gs") + bytes_size(progress));
    let mut headers_count = 2 + usize::from(progress.is_some());
    let mut more = Vec::new();
    for header in headers.into_iter().flatten() {
        let header = header.cast::<PyTuple>()?;
        let (name, value) = (header.get_borrowed_item(0)?, header.get_borrowed_item(1)?);
        put_bytes(&mut more, name.cast::<PyString>()?.to_str()?.as_bytes());
        put_bytes(&mut more, value.cast::<PyBytes>()?.as_bytes());
        headers_count += 1;
    }
    let size = 1 // attributes
        + 1 // timestamp delta
        + varint_bytes(place)
        + bytes_size(id)
        + bytes_size(value)
        + varint_bytes(headers_count)
        + bytes_size(b"source") + bytes_size(source)
        + bytes_size(b"gw") + bytes_size(&gw)
        + progress_size
        + more.len();
    out.reserve(size + 8);
    put_varint(out, size);
    out.extend_from_slice(&[0, 0]);
    put_varint(out, place);
    put_bytes(out, id);
    put_bytes(out, value);
    put_varint(out, headers_count);
    for part in [b"source", source, b"gw", &gw] {
        put_bytes(out, part);
    }
    if let Some(progress) = progress {
        put_bytes(out, b"gs");
        put_bytes(out, &progress);
    }
    out.extend_from_slice(&more);
    Ok(true)
}

/// Writes a `dedupe.model.types.Session` as in `gw`; returns false if one of its hashes has another size.
fn put_session(gw: &mut Vec<u8>, session: &Bound<'_, PyTuple>) -> PyResult<bool> {
    for place in 0..2 {
        let hash = session.get_item(place)?.cast_into::<PyBytes>()?;
        if hash.as_bytes().len() != HASH_BYTES {
            return Ok(false);
        }
        gw.extend_from_slice(hash.as_bytes());
    }
    for place in 2..5 {
        gw.extend_from_slice(&session.get_borrowed_item(place)?.extract::<u64>()?.to_be_bytes());
    }
    Ok(true)
}

/// Returns the header `gs`, if the state before is known.
fn progress_of(session: &Bound<'_, PyTuple>) -> PyResult<Option<Vec<u8>>> {
    let before = session.get_item(5)?;
    if before.is_none() {
        return Ok(None);
    }
    let before = before.cast::<PyTuple>()?;
    let (watermark, above) = (before.get_item(0)?, before.get_item(1)?);
    let mut progress = watermark.extract::<u64>()?.to_be_bytes().to_vec();
    if let Ok(above) = above.extract::<u64>() {
        progress.extend(above.to_be_bytes().iter().skip_while(|byte| **byte == 0));
    } else {
        let bits = above.call_method0("bit_length")?.extract::<usize>()?;
        let bytes = above.call_method1("to_bytes", (bits.div_ceil(8), "big"))?;
        progress.extend_from_slice(bytes.cast::<PyBytes>()?.as_bytes());
    }
    Ok(Some(progress))
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
