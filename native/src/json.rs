//! Reads the JSON of a body, and writes each event's fields as orjson writes them with sorted names.
//!
//! What this reader takes is JSON. An event that orjson would write in another way than is done here is *odd*: it is
//! JSON, and the Python code identifies it. A body that is no JSON here is left to the Python code as a whole.

use std::ops::Range;

/// The bytes are no JSON, or have a part that is left to Python: levels beyond `LEVELS_MAX`, or a large event.
#[derive(Debug)]
pub struct NotJson;
pub type Read<T> = Result<T, NotJson>;

/// The bound of the recursion.
const LEVELS_MAX: u32 = 128;
/// Every decimal number of so many significant digits is its float's shortest form.
const EXACT_DIGITS: usize = 15;
/// Longer integers may exceed 64 bits.
const INTEGER_DIGITS_MAX: usize = 18;
/// `app.ingest.large_json.SMALL_BYTES`: a larger event may be too expensive for Python, which has to find out.
const ITEM_BYTES_MAX: usize = 128 * 1024;
/// A longer number is odd without being parsed.
const NUMBER_BYTES_MAX: usize = 32;

type Part = Range<u32>;

/// A field of an object, within `Reader::text`.
#[derive(Clone)]
pub struct Field {
    name: Part,
    whole: Part,
}

impl Field {
    pub fn name<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        part_of(text, &self.name)
    }

    /// Returns `"name":value`.
    pub fn whole<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        part_of(text, &self.whole)
    }

    pub fn value<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.name.end as usize + 2..self.whole.end as usize]
    }
}

fn part_of<'a>(text: &'a [u8], part: &Part) -> &'a [u8] {
    &text[part.start as usize..part.end as usize]
}

/// One event of a body.
pub struct Item {
    /// Its bytes within the body.
    pub raw: Range<usize>,
    /// Within `Reader::fields`, sorted by name.
    pub fields: Range<usize>,
    pub is_odd: bool,
}

#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub enum Shape {
    Batch,
    Array,
    Event,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum State {
    Begin,
    Envelope,
    Items,
    End,
}

/// Reads one body, item by item.
pub struct Reader {
    pub shape: Shape,
    pub items: Vec<Item>,
    pub fields: Vec<Field>,
    /// The values of the fields.
    pub text: Vec<u8>,
    /// The array of the batch within the body, brackets included.
    pub batch: Range<usize>,
    at: usize,
    state: State,
    stack: Vec<Field>,
    scratch: Vec<u8>,
    is_odd: bool,
    depth_max: u32,
}

impl Reader {
    /// `depth_max`: an event that nests deeper is odd.
    pub fn new(depth_max: u32) -> Self {
        Reader {
            shape: Shape::Event,
            items: Vec::new(),
            fields: Vec::new(),
            text: Vec::new(),
            batch: 0..0,
            at: 0,
            state: State::Begin,
            stack: Vec::with_capacity(64),
            scratch: Vec::with_capacity(1024),
            is_odd: false,
            depth_max,
        }
    }

    /// Reads about `work_bytes` more of the body; returns whether it was read to its end.
    pub fn read(&mut self, body: &[u8], work_bytes: usize) -> Read<bool> {
        let until = self.at.saturating_add(work_bytes);
        while self.state != State::End && self.at < until {
            match self.state {
                State::Begin => self.begin(body)?,
                State::Envelope => self.envelope(body)?,
                State::Items => self.items(body)?,
                State::End => break,
            }
        }
        Ok(self.state == State::End)
    }

    fn begin(&mut self, body: &[u8]) -> Read<()> {
        self.text.reserve(body.len());
        self.blanks(body);
        match self.next(body)? {
            b'[' => {
                self.shape = Shape::Array;
                self.state = State::Items;
            }
            b'{' => self.state = State::Envelope,
            _ => return Err(NotJson),
        }
        self.blanks(body);
        Ok(())
    }

    /// Reads the fields of the body's object, up to its batch or to its end.
    fn envelope(&mut self, body: &[u8]) -> Read<()> {
        loop {
            let name = self.name(body)?;
            let is_batch = part_of(&self.text, &name) == b"batch";
            if is_batch && self.shape == Shape::Batch {
                return Err(NotJson); // of two, Python takes the last
            }
            if is_batch && self.peek(body)? == b'[' {
                self.shape = Shape::Batch;
                self.state = State::Items;
                self.batch.start = self.at;
                self.at += 1;
                self.blanks(body);
                return Ok(());
            }
            self.field(body, name, 1)?;
            if !self.has_more(body, b'}')? {
                return self.end_envelope(body);
            }
        }
    }

    fn end_envelope(&mut self, body: &[u8]) -> Read<()> {
        let end = self.at;
        if self.shape == Shape::Batch {
            if self.is_odd {
                return Err(NotJson); // its top level has a name twice, or escaped
            }
            self.stack.clear();
        } else {
            let start = body.iter().position(|&byte| byte == b'{').ok_or(NotJson)?;
            self.end_item(start..end, 0)?;
        }
        self.end(body)
    }

    fn end(&mut self, body: &[u8]) -> Read<()> {
        self.blanks(body);
        if self.at != body.len() {
            return Err(NotJson);
        }
        self.state = State::End;
        Ok(())
    }

    /// Reads one item, and what follows it.
    fn items(&mut self, body: &[u8]) -> Read<()> {
        let (start, base) = (self.at, self.stack.len());
        let was_odd = std::mem::replace(&mut self.is_odd, false);
        if self.next(body)? != b'{' {
            return Err(NotJson); // an item that is no object
        }
        self.blanks(body);
        if self.peek(body)? == b'}' {
            return Err(NotJson); // nor is this an event
        }
        loop {
            let name = self.name(body)?;
            self.field(body, name, 1)?;
            if !self.has_more(body, b'}')? {
                break;
            }
        }
        self.end_item(start..self.at, base)?;
        self.is_odd = was_odd;
        if self.has_more(body, b']')? {
            return Ok(());
        }
        if self.shape == Shape::Array {
            return self.end(body);
        }
        self.batch.end = self.at;
        self.state = State::Envelope;
        if !self.has_more(body, b'}')? {
            return self.end_envelope(body);
        }
        Ok(())
    }

    /// Takes the fields of an item off the stack.
    fn end_item(&mut self, raw: Range<usize>, base: usize) -> Read<()> {
        if raw.len() > ITEM_BYTES_MAX {
            return Err(NotJson);
        }
        let (text, fields) = (&self.text, &mut self.stack[base..]);
        if !is_sorted(text, fields) {
            fields.sort_unstable_by(|a, b| a.name(text).cmp(b.name(text)));
            self.is_odd |= has_twice(text, fields);
        }
        let start = self.fields.len();
        self.fields.extend(self.stack.drain(base..));
        self.items.push(Item { raw, fields: start..self.fields.len(), is_odd: self.is_odd });
        Ok(())
    }

    /// Whether a comma follows, and not the closing bracket; goes behind it and blanks.
    fn has_more(&mut self, body: &[u8], closing: u8) -> Read<bool> {
        self.blanks(body);
        match self.next(body)? {
            b',' => {
                self.blanks(body);
                Ok(true)
            }
            byte if byte == closing => Ok(false),
            _ => Err(NotJson),
        }
    }

    /// Writes a name with its colon, and returns where it is in `text`.
    fn name(&mut self, body: &[u8]) -> Read<Part> {
        if self.peek(body)? != b'"' {
            return Err(NotJson);
        }
        let start = self.text.len();
        let is_escaped = self.string(body)?;
        self.is_odd |= is_escaped; // it is sorted as it reads, not as it is written
        let name = to_part(start + 1, self.text.len() - 1);
        self.text.push(b':');
        self.blanks(body);
        if self.next(body)? != b':' {
            return Err(NotJson);
        }
        self.blanks(body);
        Ok(name)
    }

    /// Writes the value of a field, and puts the field on the stack.
    fn field(&mut self, body: &[u8], name: Part, depth: u32) -> Read<()> {
        self.value(body, depth)?;
        let whole = name.start - 1..to_part(0, self.text.len()).end;
        self.stack.push(Field { name, whole });
        Ok(())
    }

    /// Writes a value within `depth` levels.
    fn value(&mut self, body: &[u8], depth: u32) -> Read<()> {
        match self.peek(body)? {
            b'"' => self.string(body).map(|_| ()),
            b'{' => self.object(body, depth + 1),
            b'[' => self.array(body, depth + 1),
            b't' => self.word(body, b"true"),
            b'f' => self.word(body, b"false"),
            b'n' => self.word(body, b"null"),
            _ => self.number(body),
        }
    }

    fn open(&mut self, body: &[u8], depth: u32) -> Read<u8> {
        if depth > LEVELS_MAX {
            return Err(NotJson);
        }
        self.is_odd |= depth > self.depth_max;
        self.text.push(body[self.at]);
        self.at += 1;
        self.blanks(body);
        self.peek(body)
    }

    fn object(&mut self, body: &[u8], depth: u32) -> Read<()> {
        let (start, base) = (self.text.len() + 1, self.stack.len());
        if self.open(body, depth)? == b'}' {
            self.at += 1;
            self.text.push(b'}');
            return Ok(());
        }
        loop {
            let name = self.name(body)?;
            self.field(body, name, depth)?;
            if !self.has_more(body, b'}')? {
                break;
            }
            self.text.push(b',');
        }
        self.sort(start, base);
        self.text.push(b'}');
        Ok(())
    }

    /// Sorts the fields of an object, which begin at `start` in the text, and takes them off the stack.
    fn sort(&mut self, start: usize, base: usize) {
        let (text, fields) = (&mut self.text, &mut self.stack[base..]);
        if !is_sorted(text, fields) {
            fields.sort_unstable_by(|a, b| a.name(text).cmp(b.name(text)));
            self.is_odd |= has_twice(text, fields);
            self.scratch.clear();
            for field in fields.iter() {
                self.scratch.extend_from_slice(field.whole(text));
                self.scratch.push(b',');
            }
            let length = self.scratch.len() - 1;
            text[start..].copy_from_slice(&self.scratch[..length]);
        }
        self.stack.truncate(base);
    }

    fn array(&mut self, body: &[u8], depth: u32) -> Read<()> {
        if self.open(body, depth)? == b']' {
            self.at += 1;
            self.text.push(b']');
            return Ok(());
        }
        loop {
            self.value(body, depth)?;
            if !self.has_more(body, b']')? {
                self.text.push(b']');
                return Ok(());
            }
            self.text.push(b',');
        }
    }

    fn word(&mut self, body: &[u8], word: &[u8]) -> Read<()> {
        if !body[self.at..].starts_with(word) {
            return Err(NotJson);
        }
        self.at += word.len();
        self.text.extend_from_slice(word);
        Ok(())
    }

    /// Copies a number; it is odd unless this is how orjson writes its value.
    fn number(&mut self, body: &[u8]) -> Read<()> {
        let rest = &body[self.at..];
        let digits_from = |from: usize| rest[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let sign = usize::from(rest.first() == Some(&b'-'));
        let whole = digits_from(sign);
        if whole == 0 || (whole > 1 && rest[sign] == b'0') {
            return Err(NotJson);
        }
        let mut end = sign + whole;
        let mut fraction = 0;
        if rest.get(end) == Some(&b'.') {
            fraction = digits_from(end + 1);
            if fraction == 0 {
                return Err(NotJson);
            }
            end += 1 + fraction;
        }
        let has_exponent = matches!(rest.get(end), Some(b'e' | b'E'));
        if has_exponent {
            let signed = end + 1 + usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
            if signed > rest.len() || digits_from(signed) == 0 {
                return Err(NotJson);
            }
            end = signed + digits_from(signed);
        }
        let text = &rest[..end];
        let is_as_written = if has_exponent {
            false
        } else if fraction == 0 {
            whole <= INTEGER_DIGITS_MAX && text != b"-0"
        } else {
            text[end - 1] != b'0' && is_shortest(text, whole, fraction)
        };
        self.is_odd |= !is_as_written;
        self.text.extend_from_slice(text);
        self.at += end;
        Ok(())
    }

    /// Writes a string, and returns whether there is an escape in it.
    fn string(&mut self, body: &[u8]) -> Read<bool> {
        let mut from = self.at + 1;
        let mut is_escaped = false;
        self.text.push(b'"');
        loop {
            let end = run_end(body, from)?;
            self.text.extend_from_slice(&body[from..end]);
            if body[end] == b'"' {
                self.text.push(b'"');
                self.at = end + 1;
                return Ok(is_escaped);
            }
            is_escaped = true;
            from = self.escape(body, end + 1)?;
        }
    }

    /// Writes the character whose escape begins behind a backslash, and returns the escape's end.
    fn escape(&mut self, body: &[u8], at: usize) -> Read<usize> {
        let kind = *body.get(at).ok_or(NotJson)?;
        match kind {
            b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => self.text.extend_from_slice(&[b'\\', kind]),
            b'/' => self.text.push(b'/'),
            b'u' => return self.escaped_unit(body, at + 1),
            _ => return Err(NotJson),
        }
        Ok(at + 1)
    }

    fn escaped_unit(&mut self, body: &[u8], at: usize) -> Read<usize> {
        let (mut point, mut end) = (hex(body, at)?, at + 4);
        if (0xD800..0xDC00).contains(&point) {
            if body.get(end..end + 2) != Some(b"\\u") {
                return Err(NotJson); // Python mends a lone surrogate
            }
            let low = hex(body, end + 2)?;
            if !(0xDC00..0xE000).contains(&low) {
                return Err(NotJson);
            }
            point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
            end += 6;
        }
        let character = char::from_u32(point).ok_or(NotJson)?;
        match character {
            '"' => self.text.extend_from_slice(b"\\\""),
            '\\' => self.text.extend_from_slice(b"\\\\"),
            '\u{8}' => self.text.extend_from_slice(b"\\b"),
            '\t' => self.text.extend_from_slice(b"\\t"),
            '\n' => self.text.extend_from_slice(b"\\n"),
            '\u{c}' => self.text.extend_from_slice(b"\\f"),
            '\r' => self.text.extend_from_slice(b"\\r"),
            '\0'..='\u{1f}' => self.text.extend_from_slice(format!("\\u{point:04x}").as_bytes()),
            _ => self.text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
        Ok(end)
    }

    fn blanks(&mut self, body: &[u8]) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = body.get(self.at) {
            self.at += 1;
        }
    }

    fn peek(&self, body: &[u8]) -> Read<u8> {
        body.get(self.at).copied().ok_or(NotJson)
    }

    fn next(&mut self, body: &[u8]) -> Read<u8> {
        let byte = self.peek(body)?;
        self.at += 1;
        Ok(byte)
    }
}

/// Bodies have less than 4 GiB.
#[allow(clippy::cast_possible_truncation)]
fn to_part(start: usize, end: usize) -> Part {
    start as u32..end as u32
}

fn is_sorted(text: &[u8], fields: &[Field]) -> bool {
    fields.windows(2).all(|pair| pair[0].name(text) < pair[1].name(text))
}

/// Whether sorted fields have a name twice, of which Python keeps the last value.
fn has_twice(text: &[u8], fields: &[Field]) -> bool {
    fields.windows(2).any(|pair| pair[0].name(text) == pair[1].name(text))
}

/// Whether a number with a fraction, which ends with no zero, is what orjson writes of its float.
fn is_shortest(text: &[u8], whole: usize, fraction: usize) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits[0] == b'0' && digits[2..].starts_with(b"000") {
        return false; // it may be written with an exponent
    }
    if whole + fraction <= EXACT_DIGITS {
        return true;
    }
    // Display writes the shortest digits that are the same float, and no exponent.
    text.len() <= NUMBER_BYTES_MAX
        && std::str::from_utf8(text)
            .is_ok_and(|text| text.parse::<f64>().is_ok_and(|value| value.abs() < 1e15 && value.to_string() == text))
}

/// Returns the place of the next quote, backslash or control character of a string.
fn run_end(body: &[u8], mut at: usize) -> Read<usize> {
    while let Some(chunk) = body.get(at..at + 8) {
        let marks = marks_in(u64::from_le_bytes(chunk.try_into().map_err(|_| NotJson)?));
        if marks != 0 {
            at += marks.trailing_zeros() as usize / 8;
            return if body[at] < 0x20 { Err(NotJson) } else { Ok(at) };
        }
        at += 8;
    }
    loop {
        match body.get(at) {
            Some(b'"' | b'\\') => return Ok(at),
            None | Some(..=0x1f) => return Err(NotJson),
            Some(_) => at += 1,
        }
    }
}

/// Marks the bytes of a word that are a quote, a backslash or below 0x20; the lowest mark is exact.
fn marks_in(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let zeros_in = |word: u64| word.wrapping_sub(ONES) & !word & TOPS;
    let controls = word.wrapping_sub(ONES * 0x20) & !word & TOPS;
    zeros_in(word ^ (ONES * u64::from(b'"'))) | zeros_in(word ^ (ONES * u64::from(b'\\'))) | controls
}

fn hex(body: &[u8], at: usize) -> Read<u32> {
    let digits = body.get(at..at + 4).ok_or(NotJson)?;
    digits.iter().try_fold(0, |sum, &digit| match char::from(digit).to_digit(16) {
        Some(value) => Ok(sum * 16 + value),
        None => Err(NotJson),
    })
}
