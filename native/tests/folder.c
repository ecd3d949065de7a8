/* Checks folder.c on a folder of files of all kinds: states against lstat, looks against what was written. No arguments. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support.h"

enum { FILES = 700, HEAD = 48, LONGEST = 255 };

static uint64_t rng = 0x9e3779b97f4a7c15u;
static char place[] = "/tmp/brevisfs-folder-XXXXXX";
static int folder;

/* What each file is, by its number: `length` as brv_look has it. */
static struct {
    char name[LONGEST + 1];
    int64_t length;
} made[FILES];

static void make_head(uint8_t *head, uint64_t length)
{
    static const uint8_t magic[] = {0x89, 'B', 'R', 'V', '\r', '\n', 0x1a, '\n'};
    for (int i = 0; i < HEAD; i++) head[i] = (uint8_t)next_random(&rng);
    memcpy(head, magic, sizeof magic);
    memcpy(head + 32, &length, 8);
    memcpy(head + 40, &(uint64_t){brv_checksum(head, 40)}, 8);
}

static int64_t make_file(const char *name)
{
    uint8_t head[HEAD + 10] = {0};
    const uint64_t length = next_random(&rng) >> below(&rng, 60);
    make_head(head, length);
    size_t n = HEAD + below(&rng, 10);
    const bool damaged = below(&rng, 2), cut = !damaged && !below(&rng, 3);
    if (damaged) head[below(&rng, HEAD)] ^= (uint8_t)(1 << below(&rng, 8));
    if (cut) n = below(&rng, HEAD);
    const int file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    CHECK(file >= 0 && write(file, head, n) == (ssize_t)n, "%s cannot be made", name);
    close(file);
    return damaged || cut || length >= 1ull << 60 ? BRV_NO_HEAD : (int64_t)length;
}

static void make(unsigned number)
{
    char *name = made[number].name;
    const size_t length = number < 10 ? LONGEST : 8 + below(&rng, 60);
    for (size_t i = 0; i < length; i++) do name[i] = (char)(1 + below(&rng, 255)); while (name[i] == '/');
    made[number].length = BRV_NOT_OPENED;
    switch (below(&rng, 6)) {
    case 0: CHECK(!mkdirat(folder, name, 0700), "no folder"); break;
    case 1: CHECK(!symlinkat(below(&rng, 2) ? "." : "nowhere", folder, name), "no symlink"); break;
    case 2: CHECK(!mkfifoat(folder, name, 0600), "no pipe"); break;
    default: made[number].length = make_file(name);
    }
}

static const char *name_of(const brv_files *files, size_t wanted)
{
    const char *name = files->names;
    for (size_t i = 0; i < wanted; i++) name += strlen(name) + 1;
    return name;
}

static void check_states(const brv_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        const brv_state *state = &files->states[i];
        struct stat s;
        CHECK(!fstatat(folder, name_of(files, i), &s, AT_SYMLINK_NOFOLLOW), "a file that is not there");
        CHECK(state->mode == s.st_mode && state->inode == s.st_ino && state->device == s.st_dev &&
                  state->links == (int64_t)s.st_nlink && state->size == s.st_size && state->owner == s.st_uid &&
                  state->group == s.st_gid && state->blocks == s.st_blocks && state->special == s.st_rdev,
              "the state of file %zu", i);
        CHECK(state->seconds[1] == s.st_mtim.tv_sec &&
                  state->ns[2] == s.st_ctim.tv_sec * 1000000000ll + s.st_ctim.tv_nsec,
              "the times of file %zu", i);
    }
}

static int64_t length_of(const char *name)
{
    for (unsigned i = 0; i < FILES; i++)
        if (!strcmp(made[i].name, name)) return made[i].length;
    CHECK(false, "a file that was not made: %s", name);
}

static void check_looks(const brv_files *files)
{
    uint8_t *inside = malloc(files->n);
    brv_look *looks = malloc(files->n * sizeof *looks);
    CHECK(inside && looks, "out of memory");
    for (size_t i = 0; i < files->n; i++) inside[i] = (uint8_t)below(&rng, 3);
    brv_state *states = malloc(files->n * sizeof *states);
    uint8_t *changed = calloc(files->n, 1);
    CHECK(states && changed, "out of memory");
    memcpy(states, files->states, files->n * sizeof *states);
    for (size_t i = 0; i < files->n; i++) {
        brv_state *s = &states[i];
        int64_t *const some[] = {(int64_t *)&s->inode, &s->size, &s->ns[1], &s->ns[2]};
        if ((changed[i] = !below(&rng, 3))) ++*some[below(&rng, 4)];
        else s->ns[0]++;
    }
    brv_look_at(folder, files->names, states, files->n, inside, looks);
    for (size_t i = 0; i < files->n; i++) {
        const int64_t length = inside[i] ? length_of(name_of(files, i)) : BRV_NOT_OPENED;
        CHECK(looks[i].length == length, "%lld, not %lld", (long long)looks[i].length, (long long)length);
        CHECK(looks[i].changed == (changed[i] && length != BRV_NOT_OPENED), "file %zu has changed or not", i);
    }
    free(states);
    free(changed);
    free(inside);
    free(looks);
}

/* Names of files that are there and of others, in exactly the memory that they take. */
static void check_named(void)
{
    size_t length = 0, n = 0, there = 0;
    char *names = NULL;
    for (unsigned i = 0; i < 50; i++) {
        char missing[300] = "missing";
        if (below(&rng, 2)) memset(missing, 'm', 299);
        const unsigned number = (unsigned)below(&rng, FILES);
        const bool known = below(&rng, 2);
        const char *name = known ? made[number].name : missing;
        names = realloc(names, length + strlen(name) + 1);
        CHECK(names, "out of memory");
        memcpy(names + length, name, strlen(name) + 1);
        length += strlen(name) + 1;
        n++;
        there += known;
    }
    brv_files files;
    CHECK(!brv_files_named(folder, names, n, &files) && files.n == there, "%zu files of %zu", files.n, there);
    check_states(&files);
    brv_files_free(&files);
    CHECK(brv_files_named(-2, names, n, &files) == EBADF && !files.n && files.length == strlen(names) + 1, "no error");
    brv_files_free(&files);
    free(names);
}

static bool can_open_cached(void)
{
    const uint64_t how[3] = {O_PATH | O_DIRECTORY | O_CLOEXEC, 0, 0x20};
    const int file = (int)syscall(437, folder, ".", how, sizeof how);
    if (file >= 0) close(file);
    return file >= 0;
}

/* Regular files that are as they were; where the kernel cannot do it, as under an emulator, none. */
static void check_reopened(const brv_files *files)
{
    struct stat s;
    CHECK(!fstat(folder, &s), "no folder");
    const brv_known above = {.device = s.st_dev, .inode = s.st_ino}, other = {.device = s.st_dev, .inode = s.st_ino + 1};
    const int top = open("/tmp", O_PATH | O_DIRECTORY);
    bool can = false;
    for (size_t i = 0; i < files->n; i++) {
        const brv_state *state = &files->states[i];
        brv_known known = {state->device, state->inode, state->size, {state->ns[1], state->ns[2]}};
        const char *before = strrchr(place, '/') + 1, *name = name_of(files, i);
        char names[600], missing[LONGEST + 2];
        memset(missing, 'm', sizeof missing);
        missing[4 + below(&rng, LONGEST - 2)] = 0;
        const int length = snprintf(names, sizeof names, "%s%c%s%c%s", before, 0, missing, 0, name);
        char *exact = malloc((size_t)length + 1);
        CHECK(exact, "out of memory");
        memcpy(exact, names, (size_t)length + 1);
        CHECK(!faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW) && faccessat(folder, missing, F_OK, 0), "%s", missing);
        size_t which = 9;
        int file = -1;
        /* Who mounts something elsewhere at that very moment can be in the way, but not always. */
        for (int tries = 0; file < 0 && tries < 3; tries++)
            file = brv_reopen(top, exact, &above, 1, &known, 2, &which);
        CHECK(file < 0 || (which == 1 && !fstat(file, &s) && S_ISREG(s.st_mode) && s.st_ino == state->inode), "%s", name);
        can = can || file >= 0;
        CHECK(file >= 0 || !can || !S_ISREG(state->mode), "%s is not opened", name);
        if (file >= 0) close(file);
        CHECK(brv_reopen(top, exact, &other, 1, &known, 2, &which) < 0, "opened in another folder");
        CHECK(brv_reopen(top, exact, &above, 1, &known, 1, &which) < 0, "opened what is not there");
        int64_t *const some[] = {(int64_t *)&known.device, (int64_t *)&known.inode, &known.size, known.changed,
                                 known.changed + 1};
        ++*some[below(&rng, 5)];
        CHECK(brv_reopen(top, exact, &above, 1, &known, 2, &which) < 0, "%s was other", name);
        free(exact);
    }
    CHECK(can || !brv_is_at_once(folder) || !can_open_cached(), "nothing is opened from memory");
    close(top);
}

int main(void)
{
    CHECK(mkdtemp(place) && (folder = open(place, O_PATH | O_DIRECTORY)) >= 0, "no folder");
    for (unsigned i = 0; i < FILES; i++) make(i);
    brv_files files;
    for (int round = 0; round < 5; round++) {
        CHECK(!brv_files_in(folder, &files) && files.n == FILES, "%zu files", files.n);
        check_states(&files);
        check_looks(&files);
        check_reopened(&files);
        brv_files_free(&files);
        check_named();
    }
    CHECK(brv_files_in(-2, &files) == EBADF && !files.n, "no error");
    brv_files_free(&files);
    for (unsigned i = 0; i < FILES; i++)
        CHECK(!unlinkat(folder, made[i].name, 0) || !unlinkat(folder, made[i].name, AT_REMOVEDIR), "a file stays");
    CHECK(!rmdir(place), "the folder stays");
    printf("folder: %d files as they were made\n", FILES);
    return 0;
}
