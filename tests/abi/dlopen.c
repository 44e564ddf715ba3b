/* Opens the library by path, as frameworks do: every name of the list is there, and it may be closed and reopened.
   Arguments: the library, the list of names. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **argument) {
    if (count != 3) return fprintf(stderr, "usage: dlopen LIBRARY NAMES\n"), 2;
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(argument[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
        FILE *names = fopen(argument[2], "r");
        if (!names) return perror(argument[2]), 1;
        char name[128];
        int found = 0;
        while (fgets(name, sizeof name, names)) {
            name[strcspn(name, "\n")] = 0;
            if (!dlsym(library, name)) return fprintf(stderr, "%s\n", dlerror()), 1;
            found++;
        }
        fclose(names);
        int (*get_version)(int *);
        *(void **)&get_version = dlsym(library, "ncclGetVersion");
        int version = 0;
        if (found != 209 || get_version(&version) != 0 || version != 23203)
            return fprintf(stderr, "round %d: %d names, version %d\n", round, found, version), 1;
        dlclose(library);
    }
    puts("dlopen: ok");
    return 0;
}
