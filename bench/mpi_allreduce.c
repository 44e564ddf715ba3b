// Mean time of MPI_Allreduce (float, sum) by size: mpicc -O2 bench/mpi_allreduce.c -o mpi_allreduce
// mpi_allreduce FIRST LAST FACTOR ITERATIONS prints "bytes us" on rank 0. bench/host_latency.py runs it.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double mean_us(const float* in, float* out, int count, int iterations) {
    double begin = MPI_Wtime();
    for (int i = 0; i < iterations; i++) MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return (MPI_Wtime() - begin) / iterations * 1e6;
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    if (argc != 5) MPI_Abort(MPI_COMM_WORLD, 2);
    size_t first = strtoul(argv[1], 0, 10), last = strtoul(argv[2], 0, 10), factor = strtoul(argv[3], 0, 10);
    int iterations = atoi(argv[4]), rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *in = calloc(1, last), *out = calloc(1, last);
    for (size_t bytes = first; bytes <= last; bytes *= factor) {
        mean_us(in, out, bytes / 4, iterations / 10);
        MPI_Barrier(MPI_COMM_WORLD);
        double us = mean_us(in, out, bytes / 4, iterations);
        if (rank == 0) printf("%zu %.2f\n", bytes, us);
    }
    MPI_Finalize();
    return 0;
}
