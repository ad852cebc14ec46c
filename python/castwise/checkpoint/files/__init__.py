"""Files and object stores: what is read, what appears only when it is complete.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from castwise.checkpoint.files._entry_names import check_name
from castwise.checkpoint.files._free_space import Room, check_room
from castwise.checkpoint.files._hub import (
    HubRepository,
    absent_file,
    hub_path,
    offline_source,
    target_path,
)
from castwise.checkpoint.files._paths import checked_path, is_same, real_path
from castwise.checkpoint.files._remote import (
    RemoteSource,
    Upload,
    is_hub,
    is_remote,
    is_url,
    list_store,
)
from castwise.checkpoint.files._replacing import (
    check_absent,
    check_own_start,
    check_place,
    folder_of,
    make_shared_folder,
    new_file,
    put_file,
    put_folder,
    replacing_file,
    replacing_folder,
    resumable_folder,
    sync_file,
    sync_folder,
)
from castwise.checkpoint.files._source_files import (
    JoinedFiles,
    SourceFile,
    handle,
    open_file,
    read_file,
    source_file,
    system_error,
)
from castwise.checkpoint.files._temporary_names import (
    TemporaryName,
    is_temporary,
    journal_name,
    locked,
    parts_name,
    remove_folder,
)

__all__ = [
    "HubRepository",
    "JoinedFiles",
    "RemoteSource",
    "Room",
    "SourceFile",
    "TemporaryName",
    "Upload",
    "absent_file",
    "check_absent",
    "check_name",
    "check_own_start",
    "check_place",
    "check_room",
    "checked_path",
    "folder_of",
    "handle",
    "hub_path",
    "is_hub",
    "is_remote",
    "is_same",
    "is_temporary",
    "is_url",
    "journal_name",
    "list_store",
    "locked",
    "make_shared_folder",
    "new_file",
    "offline_source",
    "open_file",
    "parts_name",
    "put_file",
    "put_folder",
    "read_file",
    "real_path",
    "remove_folder",
    "replacing_file",
    "replacing_folder",
    "resumable_folder",
    "source_file",
    "sync_file",
    "sync_folder",
    "system_error",
    "target_path",
]
