//! What counts as blank, and the limits of new ids (R33, R34).

/// Longest new id or step name, in bytes of UTF-8.
pub const MAX_ID_BYTES: usize = 512;
/// Longest new run id, in characters.
pub const MAX_RUN_ID: usize = 200;

/// Empty, or only code points with the Unicode property White_Space.
pub fn is_blank(text: &str) -> bool {
    text.chars().all(char::is_whitespace)
}

/// U+0000 to U+001F and U+007F to U+009F.
pub fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// Whether `build` is a build id (spec 08 §8.5).
pub fn is_build_id(build: &str) -> bool {
    let bytes = build.as_bytes();
    let edges = [bytes.first(), bytes.last()];
    bytes.len() <= 128
        && edges.iter().all(|byte| byte.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:+/@".contains(byte))
}

/// Why `run_id` is none, if it is none; the length counts for new runs only.
pub fn run_id_flaw(run_id: &str, new: bool) -> Option<&'static str> {
    if run_id.is_empty() {
        return Some("empty");
    }
    if !run_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        return Some("characters");
    }
    (new && run_id.len() > MAX_RUN_ID).then_some("length")
}

/// The longest start of `text` that is at most `limit` bytes and ends between characters.
pub fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}
