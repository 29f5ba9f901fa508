/* A `ptxas` that passes PTX through, for programs that run ptxas and load its output (Triton, XLA): software GPUs run PTX. It accepts ptxas's command
 * line and refuses input that is not PTX. Errors in the PTX are reported later, when the module is loaded or a kernel is launched. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "read_file.h"

/* Newer than the release of any toolkit that a program may compare with, so that none refuses it as too old. */
#define RELEASE "13.9"

static const char *output = "elf.o", *input, *arch = "sm_75";
static int verbose;

static _Noreturn void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("ptxas fatal   : ", stderr);
    vfprintf(stderr, format, args);
    fputs("\n", stderr);
    va_end(args);
    exit(255);
}

static void say_version(void) {
    puts("ptxas: NVIDIA (R) Ptx optimizing assembler\n"
         "gpuvirt's, for software GPUs: it hands PTX through\n"
         "Cuda compilation tools, release " RELEASE ", V" RELEASE ".0\n"
         "Build cuda_" RELEASE ".r" RELEASE "/gpuvirt");
}

/* Options that take a value: in the next argument, or behind an equals sign. All others stand alone. */
static const char *const with_value[] = {"-o",
                                         "--output-file",
                                         "-arch",
                                         "--gpu-name",
                                         "-O",
                                         "--opt-level",
                                         "-maxrregcount",
                                         "--maxrregcount",
                                         "-m",
                                         "--machine",
                                         "-e",
                                         "--entry",
                                         "-ias",
                                         "--input-as-string",
                                         "-fmad",
                                         "--fmad",
                                         "-dlcm",
                                         "--def-load-cache",
                                         "-dscm",
                                         "--def-store-cache",
                                         "-flcm",
                                         "--force-load-cache",
                                         "-fscm",
                                         "--force-store-cache",
                                         "-split-compile",
                                         "--split-compile",
                                         "-optf",
                                         "--options-file",
                                         "-jobserver",
                                         "--regAllocOptLevel",
                                         "-regAllocOptLevel",
                                         "-Ofc",
                                         "--Ofast-compile",
                                         "-maxntid",
                                         "--maxntid",
                                         "-minnctapersm",
                                         "--minnctapersm",
                                         "-override-directive-values"};

static int is_named(const char *name, const char *short_name, const char *long_name) { return !strcmp(name, short_name) || !strcmp(name, long_name); }

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *arg = argv[i], *value = NULL;
        if (arg[0] != '-' || !arg[1]) {
            if (input) die("a single input file is taken; '%s' is the second", arg);
            input = arg;
            continue;
        }
        if (!strncmp(arg, "-O", 2) && arg[2] >= '0' && arg[2] <= '9') continue;
        char *equals = strchr(arg, '=');
        if (equals) {
            *equals = 0;
            value = equals + 1;
        }
        int takes = 0;
        for (size_t n = 0; n < sizeof with_value / sizeof *with_value && !takes; n++) takes = !strcmp(arg, with_value[n]);
        if (takes && !value) {
            if (++i == argc) die("the option '%s' needs a value", arg);
            value = argv[i];
        }
        if (is_named(arg, "-o", "--output-file")) {
            output = value;
        } else if (is_named(arg, "-arch", "--gpu-name")) {
            arch = value;
        } else if (is_named(arg, "-ias", "--input-as-string")) {
            die("the option '%s' is not supported here; give the PTX in a file", arg);
        } else if (is_named(arg, "-v", "--verbose")) {
            verbose = 1;
        } else if (is_named(arg, "-V", "--version")) {
            say_version();
            exit(0);
        } else if (is_named(arg, "-h", "--help")) {
            say_version();
            puts("usage: ptxas [options] FILE.ptx -o OUTPUT");
            exit(0);
        }
    }
}

/* Behind blanks and comments. */
static const char *skip(const char *p) {
    for (;;) {
        while (isspace((unsigned char)*p)) p++;
        if (p[0] == '/' && p[1] == '/') {
            while (*p && *p != '\n') p++;
        } else if (p[0] == '/' && p[1] == '*') {
            const char *end = strstr(p + 2, "*/");
            if (!end) return p + strlen(p);
            p = end + 2;
        } else {
            return p;
        }
    }
}

static void check_ptx(const char *text) {
    const char *p = skip(text);
    if (strncmp(p, ".version", 8) != 0) die("'%s' is no PTX: it does not begin with .version", input);
    for (p += 8; *p && *p != '\n'; p++) continue;
    if (strncmp(skip(p), ".target", 7) != 0) die("'%s' is no PTX: no .target follows its .version", input);
    int depth = 0;
    for (p = text; *(p = skip(p)); p++) {
        if (*p == '"') {
            while (p[1] && p[1] != '"') p += p[1] == '\\' && p[2] ? 2 : 1;
            if (p[1]) p++;
        }
        depth += *p == '{' ? 1 : *p == '}' ? -1 : 0;
        if (depth < 0) break;
    }
    if (depth) die("'%s' is no PTX: its braces do not match", input);
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    if (!input) die("No input files specified");
    size_t size;
    char *text = read_file(input, &size);
    if (!text) die("Could not open input file '%s': %s", input, strerror(errno));
    size = strlen(text);
    check_ptx(text);
    FILE *f = fopen(output, "wbe");
    /* With its NUL: who loads it may take it for a cubin, which knows its own size, and put none behind it. */
    int wrong = !f || fwrite(text, 1, size + 1, f) != size + 1;
    if (f && fclose(f)) wrong = 1;
    if (wrong) die("Could not write output file '%s': %s", output, strerror(errno));
    free(text);
    if (verbose) fprintf(stderr, "ptxas info    : %zu bytes of PTX handed through for a software GPU ('%s' was asked for)\n", size, arch);
    return 0;
}
