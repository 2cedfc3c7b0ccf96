/*
 * What error replies mean. The texts are those of redis-server 7.0.15 and valkey-server 8; bytes lie on the heap exactly as long as needed, so that a sanitizer sees a read behind them.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "shard/recover.h"

TestSuite(recover);

static enum recover_verdict classify_bytes(const char *bytes, size_t length, struct recover_target *target)
{
    uint8_t *copy = alloc_zeroed(length);
    memcpy(copy, bytes, length);
    enum recover_verdict verdict = recover_classify(copy, (uint32_t)length, target);
    alloc_free(copy);
    return verdict;
}

/* `text` without '-' and line end. */
static enum recover_verdict classify(const char *text, struct recover_target *target)
{
    char line[1024];
    int length = snprintf(line, sizeof(line), "-%s\r\n", text);
    cr_assert(length > 0 && (size_t)length < sizeof(line));
    memset(target, 0xaa, sizeof(*target));
    return classify_bytes(line, (size_t)length, target);
}

Test(recover, redirect_of_any_host_is_parsed)
{
    static const struct {
        const char *text;
        enum recover_verdict verdict;
        const char *host;
        uint16_t slot, port;
    } rows[] = {
        {"MOVED 3999 127.0.0.1:6381", RECOVER_MOVED, "127.0.0.1", 3999, 6381},
        {"ASK 3999 127.0.0.1:6381", RECOVER_ASK, "127.0.0.1", 3999, 6381},
        {"MOVED 0 ::1:6379", RECOVER_MOVED, "::1", 0, 6379},
        {"ASK 16383 2001:db8::1:ff:65535", RECOVER_ASK, "2001:db8::1:ff", 16383, 65535},
        {"MOVED 866 :6379", RECOVER_MOVED, "", 866, 6379},
        {"ASK 866 :1", RECOVER_ASK, "", 866, 1},
        {"MOVED 866 ?:6379", RECOVER_MOVED, "", 866, 6379},
        {"MOVED 1 node-3.redis.example:6379", RECOVER_MOVED, "node-3.redis.example", 1, 6379},
        {"ASK 1 ?x:6379", RECOVER_ASK, "?x", 1, 6379},
        {"MOVED 00866 a:06379", RECOVER_MOVED, "a", 866, 6379},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct recover_target target;
        cr_expect_eq(classify(rows[i].text, &target), rows[i].verdict, "%s", rows[i].text);
        cr_expect_str_eq(target.host, rows[i].host, "%s", rows[i].text);
        cr_expect(target.slot == rows[i].slot && target.port == rows[i].port, "%s", rows[i].text);
    }
}

Test(recover, malformed_redirect_is_the_clients_business)
{
    static const char *const texts[] = {
        "MOVED", "MOVED ", "MOVED 1", "MOVED 1 ", "MOVED 1 a", "MOVED 1 a:", "MOVED 1 :", "MOVED 1 a:0", "MOVED 1 a:65536", "MOVED 1 a:99999999999999999999",
        "MOVED 16384 a:1", "MOVED 99999999999999999999 a:1", "MOVED -1 a:1", "MOVED +1 a:1", "MOVED x a:1", "MOVED 1x a:1", "MOVED 1 a:1x", "MOVED 1 a:x1", "MOVED 1 a:-1",
        "MOVED  1 a:1", "MOVED 1  a:1", "MOVED\t1 a:1", "ASK", "ASK 1", "ASK 1 a", "ASK 16384 a:1", "ASK a:1", "moved 1 a:1", "Moved 1 a:1", "MOVEDX 1 a:1", "MOVE 1 a:1", "ASKING 1 a:1", "ASK1 a:1",
    };
    struct recover_target target;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        cr_expect_eq(classify(texts[i], &target), RECOVER_NONE, "%s", texts[i]);
}

Test(recover, redirect_cut_at_every_byte_is_refused_until_its_port_begins)
{
    static const char *const texts[] = {"MOVED 3999 127.0.0.1:6381", "ASK 12 2001:db8::1:6381", "MOVED 7 :6381", "ASK 7 ?:6381", "MOVED 7 some.host:6381"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        size_t port_at = (size_t)(strrchr(texts[i], ':') - texts[i]) + 1;
        for (size_t cut = 0; cut <= strlen(texts[i]); cut++) {
            char text[64];
            struct recover_target target;
            memcpy(text, texts[i], cut);
            text[cut] = '\0';
            enum recover_verdict verdict = classify(text, &target);
            /* A cut within an IPv6 address has a colon and digits: another address, but a well-formed one. */
            if (cut > port_at)
                cr_expect_neq(verdict, RECOVER_NONE, "%s", text);
            else if (strchr(texts[i], ':') == texts[i] + port_at - 1)
                cr_expect_eq(verdict, RECOVER_NONE, "%s", text);
        }
        /* Without a line end too nothing behind the bytes is read. */
        for (size_t cut = 1; cut <= strlen(texts[i]); cut++) {
            char text[64];
            struct recover_target target;
            (void)snprintf(text, sizeof(text), "-%s", texts[i]);
            (void)classify_bytes(text, cut, &target);
        }
    }
}

Test(recover, host_of_any_length_fits_or_is_refused)
{
    for (size_t length = HOST_BYTES - 3; length <= HOST_BYTES + 3; length++) {
        char text[512];
        char host[HOST_BYTES + 8];
        struct recover_target target;
        memset(host, 'h', length);
        host[length] = '\0';
        (void)snprintf(text, sizeof(text), "MOVED 5 %s:7000", host);
        bool fits = length < HOST_BYTES;
        cr_expect_eq(classify(text, &target), fits ? RECOVER_MOVED : RECOVER_NONE, "%zu", length);
        if (fits)
            cr_expect_str_eq(target.host, host);
    }
}

Test(recover, error_that_passes_is_retried)
{
    static const struct {
        const char *text;
        enum recover_verdict verdict;
    } rows[] = {
        {"TRYAGAIN Multiple keys request during rehashing of slot", RECOVER_RETRY},
        {"CLUSTERDOWN Hash slot not served", RECOVER_RETRY_REFRESH},
        {"CLUSTERDOWN The cluster is down", RECOVER_RETRY_REFRESH},
        {"CLUSTERDOWN The cluster is down and only accepts read commands", RECOVER_RETRY_REFRESH},
        {"LOADING Redis is loading the dataset in memory", RECOVER_RETRY_REFRESH},
        {"LOADING Valkey is loading the dataset in memory", RECOVER_RETRY_REFRESH},
        {"READONLY You can't write against a read only replica.", RECOVER_RETRY_REFRESH},
        {"READONLY You can't write against a read only slave.", RECOVER_RETRY_REFRESH},
        {"READONLY Can not run script with write flag on readonly replica", RECOVER_RETRY_REFRESH},
        {"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", RECOVER_RETRY_REFRESH},
        {"MASTERDOWN Link with MASTER is down, replica-serve-stale-data is set to 'no' and 'allow-stale' flag is not set on the script.", RECOVER_RETRY_REFRESH},
        {"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", RECOVER_RETRY},
        {"BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.", RECOVER_RETRY},
        {"BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", RECOVER_RETRY},
        {"BUSY Redis is busy running a module command.", RECOVER_RETRY},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct recover_target target;
        cr_expect_eq(classify(rows[i].text, &target), rows[i].verdict, "%s", rows[i].text);
    }
}

Test(recover, error_of_a_command_is_the_clients_business)
{
    static const char *const texts[] = {
        "ERR unknown command 'x', with args beginning with: ", "WRONGTYPE Operation against a key holding the wrong kind of value", "BUSYGROUP Consumer Group name already exists",
        "BUSYKEY Target key name already exists.", "NOTBUSY No scripts in execution right now.",
        "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
        "UNKILLABLE The busy script was sent by a master instance in the context of replication and cannot be killed.", "NOSCRIPT No matching script. Please use EVAL.",
        "OOM command not allowed when used memory > 'maxmemory'.", "CROSSSLOT Keys in request don't hash to the same slot", "EXECABORT Transaction discarded because of previous errors.",
        "NOREPLICAS Not enough good replicas to write.", "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'get' command", "WRONGPASS invalid username-password pair or user is disabled.", "NOPROTO unsupported protocol version",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", "INPROG Failover already in progress", "NOMASTERLINK Can't SYNC while failing over",
        "INCONSISTENT x", "IOERR error or timeout connecting to the client", "",
    };
    struct recover_target target;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        cr_expect_eq(classify(texts[i], &target), RECOVER_NONE, "%s", texts[i]);
}

/* A script may return an error with any first word after it has written: what the server itself does not say must not be repeated. */
Test(recover, error_of_a_script_that_begins_alike_is_the_clients_business)
{
    static const char *const texts[] = {
        "BUSY", "BUSY ", "BUSY the queue is full, come again", "BUSY Redis", "BUSY is busy", "TRYAGAIN", "TRYAGAIN later", "TRYAGAIN Multiple", "LOADING", "LOADING dock is full", "READONLY",
        "READONLY account", "READONLY You", "MASTERDOWN", "MASTERDOWN x", "CLUSTERDOWN", "CLUSTERDOWN of my own", "CLUSTERDOWN The", "TRYAGAINST x", "LOADINGS x", "READONLYX x", "CLUSTERDOWNX x",
        "tryagain Multiple keys request during rehashing of slot", "ERR TRYAGAIN Multiple keys request during rehashing of slot", "XBUSY Redis is busy running a script.",
    };
    struct recover_target target;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        cr_expect_eq(classify(texts[i], &target), RECOVER_NONE, "%s", texts[i]);
}

Test(recover, shortest_errors_are_not_read_beyond_their_end)
{
    static const char *const errors[] = {"-", "-\r", "-\r\n", "-B", "-BUSY", "-BUSY\r", "-MOVED\r\n", "-MOVED \r\n", "-ASK\r\n", "-ASK 1 \r\n"};
    struct recover_target target;
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        cr_expect_eq(classify_bytes(errors[i], strlen(errors[i]), &target), RECOVER_NONE, "%s", errors[i]);
}

Test(recover, delay_doubles_up_to_its_maximum)
{
    static const uint32_t delays_ms[] = {2, 4, 8, 16, 32, 64, 64, 64};
    for (uint32_t attempts = 0; attempts < sizeof(delays_ms) / sizeof(delays_ms[0]); attempts++)
        cr_expect_eq(recover_delay_ms(attempts), delays_ms[attempts]);
    cr_expect_eq(recover_delay_ms(255), 64);
}
