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
pub use windows::reopened;

#[cfg(windows)]
#[expect(unsafe_code, reason = "a call of the system that the standard library lacks, and its handle")]
mod windows {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::FileExt;
    use std::os::windows::io::{AsRawHandle, BorrowedHandle, FromRawHandle, RawHandle};

    const GENERIC_READ: u32 = 0x8000_0000;
    const GENERIC_WRITE: u32 = 0x4000_0000;
    /// `FILE_SHARE_READ`, `FILE_SHARE_WRITE` and `FILE_SHARE_DELETE`.
    const SHARE_ALL: u32 = 7;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        #[link_name = "ReOpenFile"]
        safe fn reopen_file(file: RawHandle, access: u32, share: u32, flags: u32) -> RawHandle;
    }

    /// Opens an open file again, to read or to write, with a position of its own: Windows moves that even where an offset
    /// is given, and a buffer of the host would then go on at another place. A device, which has none, is duplicated.
    ///
    /// # Errors
    /// That of the system for a handle that is not open.
    pub fn reopened(file: BorrowedHandle<'_>, writes: bool) -> io::Result<File> {
        let access = if writes { GENERIC_WRITE } else { GENERIC_READ };
        let handle = reopen_file(file.as_raw_handle(), access, SHARE_ALL, 0);
        if handle.addr() == usize::MAX {
            return Ok(file.try_clone_to_owned()?.into()); // INVALID_HANDLE_VALUE
        }
        // SAFETY: the handle is new and open, and nobody else has it.
        Ok(unsafe { File::from_raw_handle(handle) })
    }

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

#[cfg(all(test, windows))]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::{Read, Seek, SeekFrom};
    use std::os::windows::io::AsHandle;

    use super::{read_exact_at, reopened, write_at};

    #[test]
    fn the_position_of_a_file_that_is_opened_again_stays() {
        let path = std::env::temp_dir().join(format!("castwise-{}", std::process::id()));
        fs::write(&path, b"0123456789").unwrap();
        let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.seek(SeekFrom::Start(2)).unwrap();
        let mut bytes = [0; 3];
        read_exact_at(&reopened(file.as_handle(), false).unwrap(), &mut bytes, 6).unwrap();
        assert_eq!(&bytes, b"678");
        write_at(&reopened(file.as_handle(), true).unwrap(), b"x", 4).unwrap();
        file.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"23x");
        drop(file);
        fs::remove_file(path).unwrap();
    }
}
