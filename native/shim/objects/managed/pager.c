#include "objects/managed/pager.h"

#include <stddef.h>
#include <string.h>

#include "objects/shim.h"
#include "session/session.h"

const struct pager *pager_start(const struct page_watch *watch) {
    const struct pager *all[] = {&pager_userfault, &pager_signal};
    const char *wanted = shim_setting("PAGER", "");
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if ((!*wanted || !strcmp(wanted, all[i]->name)) && all[i]->start(watch)) return all[i];
    shim_log_once("managed memory: pages of the host cannot be watched (GPUVIRT_PAGER=%s)", wanted);
    return NULL;
}
