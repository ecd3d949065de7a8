/* What the files of a store's folder are, by system calls alone: a listing asks about all of them at once. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "internal.h"

enum { HEAD = 48, HEAD_LENGTH = 32, HEAD_CHECK = 40 }; /* docs/format.md */

#ifdef STATX_MNT_ID
enum { ASKED = STATX_BASIC_STATS | STATX_MNT_ID };
static uint64_t mount_of(const struct statx *s) { return s->stx_mask & STATX_MNT_ID ? s->stx_mnt_id : 0; }
#else
enum { ASKED = STATX_BASIC_STATS };
static uint64_t mount_of(const struct statx *s) { return 0 & s->stx_mask; }
#endif

/* ---- states -------------------------------------------------------------------------------- */

static int64_t nanoseconds(int64_t seconds, uint32_t rest) { return seconds * 1000000000 + rest; }

static brv_state state_of(const struct statx *s)
{
    const struct statx_timestamp *times[] = {&s->stx_atime, &s->stx_mtime, &s->stx_ctime};
    brv_state state = {
        .mode = s->stx_mode,
        .inode = s->stx_ino,
        .device = makedev(s->stx_dev_major, s->stx_dev_minor),
        .links = s->stx_nlink,
        .owner = s->stx_uid,
        .group = s->stx_gid,
        .size = (int64_t)s->stx_size,
        .block_size = s->stx_blksize,
        .blocks = (int64_t)s->stx_blocks,
        .special = makedev(s->stx_rdev_major, s->stx_rdev_minor),
        .mount = mount_of(s),
    };
    for (int i = 0; i < 3; i++) {
        state.seconds[i] = times[i]->tv_sec;
        state.about[i] = (double)times[i]->tv_sec + 1e-9 * times[i]->tv_nsec;
        state.ns[i] = nanoseconds(times[i]->tv_sec, times[i]->tv_nsec);
    }
    return state;
}

static void *room_for(void *base, size_t size, size_t used, size_t more, size_t *room)
{
    if (used + more <= *room) return base;
    *room = 2 * *room + more;
    return realloc(base, *room * size);
}

/* Adds a name, and its state if it has one. */
static int add(brv_files *files, const char *name, const brv_state *state)
{
    const size_t length = strlen(name) + 1;
    char *names = room_for(files->names, 1, files->length, length, &files->names_room);
    if (!names) return ENOMEM;
    memcpy(names + files->length, name, length);
    files->names = names;
    files->length += length;
    if (!state) return 0;
    brv_state *states = room_for(files->states, sizeof *states, files->n, 1, &files->states_room);
    if (!states) return ENOMEM;
    files->states = states;
    states[files->n++] = *state;
    return 0;
}

static int look_up(brv_files *files, int folder, const char *name)
{
    struct statx s;
    if (!statx(folder, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, ASKED, &s)) {
        const brv_state state = state_of(&s);
        return add(files, name, &state);
    }
    if (errno == ENOENT || errno == ENAMETOOLONG) return 0;
    const int error = errno;
    add(files, name, NULL);
    return error;
}

int brv_files_named(int folder, const char *names, size_t n, brv_files *files)
{
    *files = (brv_files){0};
    int error = 0;
    for (size_t i = 0; i < n && !error; i++, names += strlen(names) + 1) error = look_up(files, folder, names);
    return error;
}

int brv_files_in(int folder, brv_files *files)
{
    *files = (brv_files){0};
    const int descriptor = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return errno;
    DIR *listing = fdopendir(descriptor);
    int error = listing ? 0 : errno;
    if (!listing) close(descriptor);
    while (!error) {
        errno = 0;
        const struct dirent *entry = readdir(listing);
        if (!entry) {
            error = errno;
            break;
        }
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) error = look_up(files, folder, entry->d_name);
    }
    if (listing) closedir(listing);
    return error;
}

void brv_files_free(brv_files *files)
{
    free(files->names);
    free(files->states);
}

/* ---- looks --------------------------------------------------------------------------------- */

/* What the owner sees of a file's times is not to tell that it was looked at. */
static int open_unseen(int folder, const char *name)
{
    const int how = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    const int file = openat(folder, name, how | O_NOATIME);
    return file < 0 && errno == EPERM ? openat(folder, name, how) : file;
}

static int64_t length_in(const uint8_t *head, ssize_t got)
{
    static const uint8_t magic[] = {0x89, 'B', 'R', 'V', '\r', '\n', 0x1a, '\n'};
    if (got < 0) return BRV_NOT_OPENED;
    if (got < HEAD || memcmp(head, magic, sizeof magic)) return BRV_NO_HEAD;
    const uint64_t length = load64(head + HEAD_LENGTH);
    if (length >= 1ull << 60 || brv_checksum(head, HEAD_CHECK) != load64(head + HEAD_CHECK)) return BRV_NO_HEAD;
    return (int64_t)length;
}

/* The state is looked at before the head is read: what is read may be newer, and the file's state will differ then. */
static bool look_inside(int folder, const char *name, const brv_state *before, brv_look *look)
{
    const int file = open_unseen(folder, name);
    if (file < 0) return false;
    uint8_t head[HEAD];
    struct stat s;
    if (!fstat(file, &s) && S_ISREG(s.st_mode)) {
        look->changed = s.st_ino != before->inode || s.st_size != before->size ||
                        nanoseconds(s.st_mtim.tv_sec, (uint32_t)s.st_mtim.tv_nsec) != before->ns[1] ||
                        nanoseconds(s.st_ctim.tv_sec, (uint32_t)s.st_ctim.tv_nsec) != before->ns[2];
        look->length = length_in(head, pread(file, head, sizeof head, 0));
        look->bare = !flistxattr(file, NULL, 0);
    }
    close(file);
    return look->length != BRV_NOT_OPENED;
}

static void look_outside(int folder, const char *name, brv_look *look)
{
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "/proc/self/fd/%d/%s", folder, name);
    look->bare = length < (int)sizeof path && !llistxattr(path, NULL, 0);
}

void brv_look_at(int folder, const char *names, const brv_state *states, size_t n, const uint8_t *inside,
                 brv_look *looks)
{
    for (size_t i = 0; i < n; i++, names += strlen(names) + 1) {
        looks[i] = (brv_look){.length = BRV_NOT_OPENED};
        if (!inside[i] || !look_inside(folder, names, &states[i], &looks[i])) look_outside(folder, names, &looks[i]);
    }
}

/* ---- what the kernel has in memory --------------------------------------------------------- */

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
enum { CACHED = 0x20 }; /* RESOLVE_CACHED, which headers before Linux 5.12 lack */

static int open_cached(int folder, const char *name, int flags)
{
    struct {
        uint64_t flags, mode, resolve;
    } how = {(uint64_t)(flags | O_NOFOLLOW | O_CLOEXEC), 0, CACHED};
    return (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
}

int brv_is_at_once(int folder)
{
    struct statfs s;
    if (fstatfs(folder, &s)) return 0;
    switch ((uint32_t)s.f_type) {
    case EXT4_SUPER_MAGIC:
    case 0x58465342: /* XFS, which some headers lack */
    case BTRFS_SUPER_MAGIC:
    case TMPFS_MAGIC: return 1;
    default: return 0;
    }
}

static bool is_file(const struct statx *s, const brv_known *known)
{
    return makedev(s->stx_dev_major, s->stx_dev_minor) == known->device && s->stx_ino == known->inode;
}

static bool is_unchanged(const struct statx *s, const brv_known *known)
{
    return is_file(s, known) && (int64_t)s->stx_size == known->size &&
           nanoseconds(s->stx_mtime.tv_sec, s->stx_mtime.tv_nsec) == known->changed[0] &&
           nanoseconds(s->stx_ctime.tv_sec, s->stx_ctime.tv_nsec) == known->changed[1];
}

/* Keys and hashes of such files are read when they are opened. */
static bool opens_at_once(const struct statx *s)
{
    return S_ISREG(s->stx_mode) && !(s->stx_attributes & (STATX_ATTR_ENCRYPTED | STATX_ATTR_VERITY));
}

static bool look(int file, struct statx *s) { return !statx(file, "", AT_EMPTY_PATH, ASKED, s); }

/* The folder below, in place of the one given, which is closed; -1 if it is not the one that is known. */
static int descend(int folder, const char *name, const brv_known *known)
{
    struct statx s;
    int below = open_cached(folder, name, O_PATH | O_DIRECTORY);
    close(folder);
    if (below >= 0 && !(look(below, &s) && is_file(&s, known))) {
        close(below);
        below = -1;
    }
    return below;
}

/* The folder at the end of the way, or -1; *names are those of its files then. */
static int reach(int root, const char **names, const brv_known *folders, size_t depth)
{
    int folder = open_cached(root, ".", O_PATH | O_DIRECTORY);
    for (size_t i = 0; i < depth && folder >= 0; i++, *names += strlen(*names) + 1)
        folder = descend(folder, *names, &folders[i]);
    return folder;
}

/* As brv_find_at_once, in the files' folder; *name is the file's. */
static int find_first(int folder, const char **name, size_t n, size_t *which, struct statx *s)
{
    for (*which = 0; *which < n; ++*which, *name += strlen(*name) + 1) {
        if (strlen(*name) > NAME_MAX) continue; /* of these the kernel remembers nothing */
        const int found = open_cached(folder, *name, O_PATH);
        if (found < 0 && errno == ENOENT) continue;
        if (found < 0) return EAGAIN;
        const bool seen = look(found, s);
        close(found);
        return seen ? 0 : EAGAIN;
    }
    return ENOENT;
}

int brv_find_at_once(int root, const char *names, const brv_known *folders, size_t depth, size_t n, size_t *which,
                     brv_state *state)
{
    struct statx s;
    const int folder = reach(root, &names, folders, depth);
    if (folder < 0) return EAGAIN;
    const int error = find_first(folder, &names, n, which, &s);
    close(folder);
    if (!error) *state = state_of(&s);
    return error;
}

static int reopen(int folder, const char *name, const brv_known *known)
{
    struct statx s;
    const int file = open_cached(folder, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (file < 0 || (look(file, &s) && is_file(&s, known))) return file;
    close(file);
    return -1;
}

/* What is there is looked at before it is opened: some devices do things then. */
int brv_reopen(int root, const char *names, const brv_known *folders, size_t depth, const brv_known *file, size_t n,
               size_t *which)
{
    struct statx s;
    const int folder = reach(root, &names, folders, depth);
    if (folder < 0) return -1;
    const bool same = !find_first(folder, &names, n, which, &s) && is_unchanged(&s, file) && opens_at_once(&s);
    const int opened = same ? reopen(folder, names, file) : -1;
    close(folder);
    return opened;
}
