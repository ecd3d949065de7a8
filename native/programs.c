/* Programs of the sections that have been read: within a limit of bytes, least recently used.
 *
 * A section is prepared (its prologue read and checked, its program made) when it is read for the first time, by the
 * thread that reads it. */
#include <malloc.h>

#include "front.h"

/* Sections that are prepared in advance at a time. */
enum { SECTIONS_AHEAD = 16 };

/* Prologues longer than this are read one at a time: they are not in the limit, and can have 64 MiB. */
enum { LARGE_PROLOGUE = 1 << 20 };

/* So many bytes of programs that were let go of malloc need not have given back to the system. */
enum { LOOSE = 16 << 20 };

size_t programs_most(const brv_front *f) { return f->limit / 2; }

static void leave_list(brv_front *f, prepared *p)
{
    if (p->newer) p->newer->older = p->older;
    else f->newest_program = p->older;
    if (p->older) p->older->newer = p->newer;
    else f->oldest_program = p->newer;
}

static void make_newest(brv_front *f, prepared *p)
{
    p->newer = NULL;
    p->older = f->newest_program;
    if (f->newest_program) f->newest_program->newer = p;
    else f->oldest_program = p;
    f->newest_program = p;
}

static void let_go(prepared *p)
{
    brv_front *f = p->file->front;
    p->file->prepared[p->number] = NULL;
    f->programs -= p->memory;
    if (f->most_programs - f->programs >= LOOSE) line_wake(&f->filler);
    leave_list(f, p);
    if (p->target) p->target->users--;
    brv_program_free((brv_program *)p->section.program);
    free(p);
}

void programs_shrink(brv_front *f)
{
    for (prepared *p = f->oldest_program, *newer; p && f->programs > programs_most(f); p = newer) {
        newer = p->newer;
        if (!p->users) let_go(p);
    }
}

void programs_trim(brv_front *f)
{
    if (f->most_programs - f->programs < LOOSE) return;
    f->most_programs = f->programs;
    pthread_mutex_unlock(&f->lock);
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    pthread_mutex_lock(&f->lock);
}

void programs_free(brv_file *file)
{
    for (int referring = 1; referring >= 0; referring--)
        for (size_t s = 0; s < file->index.n; s++) {
            prepared *p = file->prepared[s];
            if (p && (!referring || p->target)) let_go(p);
        }
}

void program_use(prepared *p)
{
    p->users++;
    leave_list(p->file->front, p);
    make_newest(p->file->front, p);
}

void program_unuse(prepared *p) { p->users--; }

/* Puts a program in its place, unless another thread was quicker. It is not in use, and not let go of yet. */
static int keep(brv_file *file, size_t number, brv_program *program, prepared *target)
{
    brv_front *f = file->front;
    prepared *p = file->prepared[number] ? NULL : calloc(1, sizeof *p);
    if (!p) {
        brv_program_free(program);
        return file->prepared[number] ? 0 : BRV_NO_MEMORY;
    }
    const brv_entry *e = &file->index.sections[number];
    *p = (prepared){.section = {program, file->index.blocks + 2 * e->first_block, e->record + e->prologue},
                    .file = file, .number = number, .target = target, .memory = brv_program_memory(program) + sizeof *p};
    if (target) target->users++;
    file->prepared[number] = p;
    f->programs += p->memory;
    if (f->most_programs < f->programs) f->most_programs = f->programs;
    make_newest(f, p);
    p->users++;
    programs_shrink(f);
    p->users--;
    extents_shrink(f);
    return 0;
}

/* Reads and checks a section's prologue, without the lock for the most part. NULL after an error, or if another thread has prepared it. */
static brv_program *new_program(brv_file *file, size_t number, brv_scratch *s, brv_status *st)
{
    brv_front *f = file->front;
    const brv_entry *e = &file->index.sections[number];
    const bool large = e->prologue > LARGE_PROLOGUE;
    fetched of;
    while (large && f->preparing_large) line_wait(&f->large, &f->lock);
    if (large && file->prepared[number]) return NULL;
    f->preparing_large |= large;
    fetched_use(file, e->record, e->record + e->prologue, &of);
    pthread_mutex_unlock(&f->lock);
    brv_program *program = section_program(&of.from, &file->index, number, f->cpu, s, st);
    pthread_mutex_lock(&f->lock);
    fetched_unuse(f, &of);
    if (large) {
        f->preparing_large = false;
        line_wake_all(&f->large);
    }
    return program;
}

int program_prepare(brv_file *file, size_t number, brv_scratch *s, brv_status *st)
{
    const brv_entry *e = &file->index.sections[number];
    prepared *target = NULL;
    *st = (brv_status){.node = -1};
    if (e->ref != BRV_ALONE) {
        /* Which refers to nothing itself. */
        if (!file->prepared[e->target] && program_prepare(file, e->target, s, st)) return st->code;
        target = file->prepared[e->target];
        program_use(target);
    }
    brv_program *program = new_program(file, number, s, st);
    if (program && keep(file, number, program, target)) fail(st, BRV_NO_MEMORY, -1, "out of memory");
    if (target) program_unuse(target);
    return st->code;
}

/* So many sections from this one on, of those that begin before `end`. */
static void prepare_some(brv_file *file, size_t number, uint64_t end, unsigned most, brv_scratch *s)
{
    size_t memory = 0;
    for (; most && memory < PROGRAMS_AT_ONCE && number < file->index.n; most--, number++) {
        if (file->index.sections[number].offset >= end) return;
        brv_status st;
        if (!file->prepared[number] && program_prepare(file, number, s, &st)) return;
        memory += file->prepared[number]->memory;
    }
}

void programs_prepare(brv_file *file, uint64_t at, uint64_t end, brv_scratch *s)
{
    prepare_some(file, section_at(file, at), end, STEPS, s);
}

void programs_prepare_missing(brv_file *file, brv_scratch *s)
{
    const size_t missing = file->missing;
    file->missing = file->index.n;
    prepare_some(file, missing, file->index.size, SECTIONS_AHEAD, s);
}
