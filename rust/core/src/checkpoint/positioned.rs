//! Reading and writing at an offset, which threads may do to one file at the same time.

use std::fs::File;
use std::io;

/// Bytes of a file that are sent to the disk together.
const WRITE_BACK: u64 = 8 << 20;

/// Fills `buffer` from the bytes at `offset`; `UnexpectedEof` where the file ends before.
pub(super) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset);
    #[cfg(windows)]
    return windows::read_exact_at(file, buffer, offset);
}

/// Writes all of `buffer` at `offset`; the error comes with the number of bytes that were written before.
pub(super) fn write_all_at(file: &File, buffer: &[u8], offset: u64) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while done < buffer.len() {
        let (rest, place) = (&buffer[done..], offset + done as u64);
        #[cfg(unix)]
        let written = std::os::unix::fs::FileExt::write_at(file, rest, place);
        #[cfg(windows)]
        let written = std::os::windows::fs::FileExt::seek_write(file, rest, place);
        match written {
            Ok(0) => return Err((done, io::ErrorKind::WriteZero.into())),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}

/// Writes all of `data` at `offset`, and lets the system begin to send what lies before to the disk.
///
/// # Errors
/// That of the system; `WriteZero` if it takes none of the bytes.
pub fn write_at(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    write_all_at(file, data, offset).map_err(|(_, error)| error)?;
    begin_write_back(file, offset..offset + data.len() as u64);
    Ok(())
}

/// Asks the system to begin writing to the disk what lies well before `written`, the range of a file that was written
/// last, so that the sync at the end has little left to do. Errors are reported by that sync.
#[cfg(target_os = "linux")]
pub(super) fn begin_write_back(file: &File, written: std::ops::Range<u64>) {
    use std::os::fd::AsRawFd;
    let (before, now) = (written.start / WRITE_BACK, written.end / WRITE_BACK);
    if before == now || now < 2 {
        return;
    }
    let begin = before.saturating_sub(2) * WRITE_BACK;
    let length = (now - 1) * WRITE_BACK - begin;
    // SAFETY: the file is open, and the call reads and writes no memory.
    #[expect(unsafe_code, reason = "a call of the system that the standard library lacks")]
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), begin as i64, length as i64, libc::SYNC_FILE_RANGE_WRITE)
    };
}

/// Does nothing: other systems lack such a call.
#[cfg(not(target_os = "linux"))]
pub(super) fn begin_write_back(_file: &File, _written: std::ops::Range<u64>) {
    let _ = WRITE_BACK;
}

#[cfg(windows)]
mod windows {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::FileExt;

    pub(super) fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match file.seek_read(buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => {
                    buffer = &mut buffer[count..];
                    offset += count as u64;
                }
            }
        }
        Ok(())
    }
}
