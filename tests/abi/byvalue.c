/* Structs by value and versioned structs, from optimised C: a communicator of one rank, made in each way. */
#include "hawser_nccl.h"

static void check(ncclComm_t comm) {
    int count = -1, rank = -1;
    OK(ncclCommCount(comm, &count));
    OK(ncclCommUserRank(comm, &rank));
    WANT(count == 1 && rank == 0);
}

static void properties(ncclComm_t comm) {
    ncclCommProperties_t whole;
    memset(&whole, 0x5a, sizeof whole);
    whole.size = sizeof whole, whole.magic = 0xcafebeef, whole.version = VERSION;
    OK(ncclCommQueryProperties(comm, &whole));
    WANT(whole.rank == 0 && whole.nRanks == 1 && whole.size == sizeof whole);
    unsigned char support;
    memcpy(&support, &whole.deviceApiSupport, 1);
    WANT(support == 0);

    /* An older caller's struct ends earlier: nothing behind it may change. */
    memset(&whole, 0x5a, sizeof whole);
    whole.size = 24, whole.magic = 0xcafebeef, whole.version = 22900;
    OK(ncclCommQueryProperties(comm, &whole));
    WANT(whole.rank == 0 && whole.nRanks == 1 && whole.cudaDev == 0x5a5a5a5a);
}

static void simulate(ncclComm_t comm) {
    float data[4] = {1, 2, 3, 4};
    ncclSimInfo_t info = {sizeof info, 0x74685283, VERSION, -1.0f};
    OK(ncclGroupStart());
    OK(ncclAllReduce(data, data, 4, FLOAT32, SUM, comm, NULL));
    OK(ncclGroupSimulateEnd(&info));
    WANT(info.estimatedTime >= 0.0f && data[3] == 4.0f);

    info.magic = 1;
    OK(ncclGroupStart());
    WANT(ncclGroupSimulateEnd(&info) == INVALID_ARGUMENT);
    WANT(ncclGroupEnd() == INVALID_USAGE);
}

int main(void) {
    int version = 0;
    OK(ncclGetVersion(&version));
    WANT(version == VERSION);

    ncclUniqueId id;
    ncclComm_t comm;
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, 1, id, 0));
    check(comm);
    properties(comm);
    simulate(comm);
    ncclTeam_t team = ncclTeamWorld(comm);
    WANT(team.nRanks == 1 && team.rank == 0 && team.stride == 1);
    team = ncclTeamWorld(NULL);
    WANT(team.nRanks == 0 && team.rank == 0 && team.stride == 0);
    WANT(strstr(ncclGetLastError(NULL), "ncclTeamWorld") != NULL);
    OK(ncclCommDestroy(comm));

    OK(ncclGetUniqueId(&id));
    OK(pncclCommInitRank(&comm, 1, id, 0));
    check(comm);
    OK(ncclCommDestroy(comm));

    ncclConfig_t config = no_config();
    config.minCTAs = 2, config.commName = "by value";
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    check(comm);
    OK(ncclCommAbort(comm));

    memset(&id, 0, sizeof id);
    WANT(ncclCommInitRank(&comm, 1, id, 0) == INVALID_ARGUMENT);
    WANT(strstr(ncclGetLastError(NULL), "ncclCommInitRank") != NULL);
    puts("byvalue: ok");
    return 0;
}
