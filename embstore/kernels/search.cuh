// A search for victims on the device, (8,) int64. select_victims.cu narrows it until it is DONE;
// exchange.cu sets its number of victims.
//
// TIES: the number of victims from FLOOR on; once the search is DONE, the most victims whose score
// is the threshold, HIGHEST.

#define COUNT 0
#define LOWEST 1
#define HIGHEST 2
#define FLOOR 3
#define CEILING 4
#define TIES 5
#define VICTIMS 6
#define STATE 7
#define SEEKING 0  // COUNT, LOWEST, HIGHEST are not known
#define COUNTING 1
#define DONE 2
