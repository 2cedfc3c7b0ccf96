/*
 * The commands that the gateway answers itself. The expected bytes of the tables below were recorded from redis-server 7.0.15, once
 * after HELLO 2 and once after HELLO 3, unless a comment says that the gateway differs.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "net/resp_read.h"
#include "net/resp_scan.h"
#include "tests/net/session_fixture.h"

TestSuite(session);

struct exchange {
    const char *words;
    const char *reply_2;
    const char *reply_3; /* NULL: the same */
};

static void expect_exchanges(struct fixture *fixture, const struct exchange *exchanges, size_t count)
{
    for (uint8_t protocol = 2; protocol <= 3; protocol++) {
        for (size_t i = 0; i < count; i++) {
            const struct exchange *exchange = &exchanges[i];
            fixture->session.protocol = protocol;
            const char *expected = protocol == 3 && exchange->reply_3 != NULL ? exchange->reply_3 : exchange->reply_2;
            cr_expect_str_eq(run(fixture, exchange->words), expected, "%s (RESP%u)", exchange->words, protocol);
        }
    }
}

#define EXPECT_EXCHANGES(fixture, ...) \
    do { \
        static const struct exchange exchanges_[] = {__VA_ARGS__}; \
        expect_exchanges(fixture, exchanges_, sizeof(exchanges_) / sizeof(exchanges_[0])); \
    } while (0)

/* Is the reply exactly one well-formed value? */
static bool is_one_reply(const struct fixture *fixture)
{
    struct resp_cursor cursor;
    resp_cursor_init(&cursor, fixture->writer.data, fixture->writer.length);
    return resp_skip_value(&cursor) && cursor.position == cursor.length;
}

/* ---- HELLO, AUTH, RESET, QUIT ---- */

#define HELLO_2(mode) "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:2\r\n$2\r\nid\r\n:42\r\n$4\r\nmode\r\n" mode "$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
#define HELLO_3(mode) "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:42\r\n$4\r\nmode\r\n" mode "$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
#define STANDALONE "$10\r\nstandalone\r\n"
#define CLUSTER "$7\r\ncluster\r\n"

Test(session, hello_good_and_bad_answers_as_redis)
{
    struct fixture *fixture = fixture_create();
    EXPECT_EXCHANGES(fixture,
        {"hello", HELLO_2(STANDALONE), HELLO_3(STANDALONE)},
        {"hello 2", HELLO_2(STANDALONE), NULL},
        {"hello 3", HELLO_3(STANDALONE), NULL},
        {"HELLO 3 AUTH default any", HELLO_3(STANDALONE), NULL},
        {"hello 3 auth default b setname x", HELLO_3(STANDALONE), NULL},
        {"hello x", "-ERR Protocol version is not an integer or out of range\r\n", NULL},
        {"hello _", "-ERR Protocol version is not an integer or out of range\r\n", NULL},
        {"hello 02", "-ERR Protocol version is not an integer or out of range\r\n", NULL},
        {"hello 99999999999999999999", "-ERR Protocol version is not an integer or out of range\r\n", NULL},
        {"hello 4", "-NOPROTO unsupported protocol version\r\n", NULL},
        {"hello 1", "-NOPROTO unsupported protocol version\r\n", NULL},
        {"hello 0", "-NOPROTO unsupported protocol version\r\n", NULL},
        {"hello -3", "-NOPROTO unsupported protocol version\r\n", NULL},
        {"hello 2 foo", "-ERR Syntax error in HELLO option 'foo'\r\n", NULL},
        {"hello 2 setname", "-ERR Syntax error in HELLO option 'setname'\r\n", NULL},
        {"hello 2 auth", "-ERR Syntax error in HELLO option 'auth'\r\n", NULL},
        {"hello 2 auth default", "-ERR Syntax error in HELLO option 'auth'\r\n", NULL},
        {"hello 2 a$b", "-ERR Syntax error in HELLO option 'a b'\r\n", NULL},
        {"hello 2 setname a~b", "-ERR Client names cannot contain spaces, newlines or special characters.\r\n", NULL},
        {"hello 2 auth a b", "-WRONGPASS invalid username-password pair or user is disabled.\r\n", NULL},
        {"hello 2 auth Default b", "-WRONGPASS invalid username-password pair or user is disabled.\r\n", NULL});
    fixture_destroy(&fixture);
}

Test(session, hello_in_cluster_mode_says_so)
{
    struct fixture *fixture = fixture_create();
    fixture->env.present_cluster = true;
    EXPECT_EXCHANGES(fixture, {"hello 3", HELLO_3(CLUSTER), NULL}, {"hello 2", HELLO_2(CLUSTER), NULL});
    fixture_destroy(&fixture);
}

Test(session, hello_failed_changes_nothing)
{
    static const char *const failing[] = {"hello 4", "hello x", "hello 3 auth a b setname other", "hello 3 setname other foo", "hello 3 setname a~b", "hello 3 setname other auth x y"};
    struct fixture *fixture = fixture_create();
    (void)run(fixture, "client setname me");
    for (size_t i = 0; i < sizeof(failing) / sizeof(failing[0]); i++) {
        cr_expect_eq(run(fixture, failing[i])[0], '-', "%s", failing[i]);
        cr_expect_eq(fixture->session.protocol, 2, "%s", failing[i]);
        cr_expect_str_eq(fixture->session.name, "me", "%s", failing[i]);
        cr_expect_eq(fixture->result, SESSION_REPLY, "the connection stays open");
    }
    fixture_destroy(&fixture);
}

Test(session, hello_options_are_applied)
{
    struct fixture *fixture = fixture_create();
    (void)run(fixture, "hello 3 setname one SETNAME two auth default x");
    cr_expect_eq(fixture->session.protocol, 3);
    cr_expect_str_eq(fixture->session.name, "two");
    (void)run(fixture, "hello");
    cr_expect_eq(fixture->session.protocol, 3, "HELLO without a version keeps it");
    (void)run(fixture, "hello 2 setname _");
    cr_expect_eq(fixture->session.protocol, 2);
    cr_expect_null(fixture->session.name);
    fixture_destroy(&fixture);
}

Test(session, auth_without_passwords_answers_as_redis)
{
    struct fixture *fixture = fixture_create();
    EXPECT_EXCHANGES(fixture,
        {"auth x", "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\r\n", NULL},
        {"auth default x", "+OK\r\n", NULL},
        {"auth default _", "+OK\r\n", NULL},
        {"auth foo x", "-WRONGPASS invalid username-password pair or user is disabled.\r\n", NULL},
        {"auth DEFAULT x", "-WRONGPASS invalid username-password pair or user is disabled.\r\n", NULL},
        {"auth a b c", "-ERR syntax error\r\n", NULL},
        {"auth", "-ERR wrong number of arguments for 'auth' command\r\n", NULL});
    fixture_destroy(&fixture);
}

Test(session, reset_gives_a_fresh_session)
{
    struct fixture *fixture = fixture_create();
    fixture->env.present_cluster = true;
    (void)run(fixture, "hello 3 setname me");
    (void)run(fixture, "client setinfo lib-name lib");
    (void)run(fixture, "readonly");
    (void)run(fixture, "client no-evict on");
    (void)run(fixture, "client no-touch on");
    cr_assert(fixture->session.is_readonly && fixture->session.no_evict && fixture->session.no_touch);
    (void)run(fixture, "client maint_notifications on");
    cr_assert_eq(fixture->session.moving, MOVING_NO_ENDPOINT);
    (void)run(fixture, "client reply off");
    cr_expect_str_eq(run(fixture, "reset"), "+RESET\r\n");
    cr_expect_eq(fixture->result, SESSION_REPLY);
    const struct session *session = &fixture->session;
    cr_expect(session->protocol == 2 && session->name == NULL && session->reply_mode == REPLY_ON && !session->is_readonly && !session->no_evict && !session->no_touch);
    cr_expect_eq(session->moving, MOVING_OFF);
    cr_expect_str_eq(session->library, "lib");
    cr_expect_eq(session->id, 42);
    cr_expect_str_eq(run(fixture, "client getname"), "$-1\r\n");
    fixture_destroy(&fixture);
}

Test(session, quit_replies_and_closes)
{
    struct fixture *fixture = fixture_create();
    cr_expect_str_eq(run(fixture, "quit"), "+OK\r\n");
    cr_expect_eq(fixture->result, SESSION_REPLY_CLOSE);
    (void)run(fixture, "client reply off");
    cr_expect_str_eq(run(fixture, "QUIT now"), "");
    cr_expect_eq(fixture->result, SESSION_REPLY_CLOSE);
    fixture_destroy(&fixture);
}

/* ---- small ones ---- */

Test(session, small_commands_answer_as_redis)
{
    struct fixture *fixture = fixture_create();
    EXPECT_EXCHANGES(fixture,
        {"ping", "+PONG\r\n", NULL},
        {"PING a", "$1\r\na\r\n", NULL},
        {"ping _", "$0\r\n\r\n", NULL},
        {"ping a$b", "$3\r\na\nb\r\n", NULL},
        {"ping a b", "-ERR wrong number of arguments for 'ping' command\r\n", NULL},
        {"echo hello", "$5\r\nhello\r\n", NULL},
        {"echo", "-ERR wrong number of arguments for 'echo' command\r\n", NULL},
        {"time", "*2\r\n$10\r\n1700000000\r\n$6\r\n123456\r\n", NULL},
        {"select 0", "+OK\r\n", NULL},
        {"select 1", "-ERR DB index is out of range\r\n", NULL},
        {"select 99", "-ERR DB index is out of range\r\n", NULL},
        {"select -1", "-ERR DB index is out of range\r\n", NULL},
        {"select x", "-ERR value is not an integer or out of range\r\n", NULL},
        {"select _", "-ERR value is not an integer or out of range\r\n", NULL},
        {"select 99999999999", "-ERR value is out of range, value must between -2147483648 and 2147483647\r\n", NULL},
        {"select 99999999999999999999", "-ERR value is not an integer or out of range\r\n", NULL},
        {"readonly", "-ERR This instance has cluster support disabled\r\n", NULL},
        {"readwrite", "-ERR This instance has cluster support disabled\r\n", NULL},
        {"asking", "-ERR This instance has cluster support disabled\r\n", NULL});
    fixture_destroy(&fixture);
}

Test(session, small_commands_in_cluster_mode_answer_as_redis)
{
    struct fixture *fixture = fixture_create();
    fixture->env.present_cluster = true;
    EXPECT_EXCHANGES(fixture,
        {"select 0", "+OK\r\n", NULL},
        {"select 1", "-ERR SELECT is not allowed in cluster mode\r\n", NULL},
        {"asking", "+OK\r\n", NULL},
        {"readonly", "+OK\r\n", NULL});
    cr_expect(fixture->session.is_readonly);
    cr_expect_str_eq(run(fixture, "readwrite"), "+OK\r\n");
    cr_expect_not(fixture->session.is_readonly);
    fixture_destroy(&fixture);
}

Test(session, cluster_and_role_go_to_the_topology)
{
    static const struct {
        const char *words;
        uint16_t index;
    } calls[] = {{"cluster slots", COMMAND_cluster__slots}, {"CLUSTER SHARDS", COMMAND_cluster__shards}, {"cluster nodes", COMMAND_cluster__nodes}, {"cluster info", COMMAND_cluster__info},
        {"cluster myid", COMMAND_cluster__myid}, {"cluster keyslot k", COMMAND_cluster__keyslot}, {"role", COMMAND_role}};
    struct fixture *fixture = fixture_create();
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        cr_expect_str_eq(run(fixture, calls[i].words), "+CLUSTER\r\n", "%s", calls[i].words);
        cr_expect_eq(fixture->cluster_of, command_table_at(fixture->table, calls[i].index), "%s", calls[i].words);
    }
    fixture_destroy(&fixture);
}

/* ---- CLIENT ---- */

Test(session, client_subcommands_answer_as_redis)
{
    struct fixture *fixture = fixture_create();
    EXPECT_EXCHANGES(fixture,
        {"client setname _", "+OK\r\n", NULL},
        {"client getname", "$-1\r\n", "_\r\n"},
        {"client setname a~b", "-ERR Client names cannot contain spaces, newlines or special characters.\r\n", NULL},
        {"client setname a$b", "-ERR Client names cannot contain spaces, newlines or special characters.\r\n", NULL},
        {"client setname \x7f", "-ERR Client names cannot contain spaces, newlines or special characters.\r\n", NULL},
        {"client setname \xc3\xa9", "-ERR Client names cannot contain spaces, newlines or special characters.\r\n", NULL},
        {"client setname me", "+OK\r\n", NULL},
        {"client getname", "$2\r\nme\r\n", NULL},
        {"client id", ":42\r\n", NULL},
        {"client getredir", ":-1\r\n", NULL},
        {"client no-evict on", "+OK\r\n", NULL},
        {"client no-evict OFF", "+OK\r\n", NULL},
        {"client no-evict x", "-ERR syntax error\r\n", NULL},
        {"client no-touch on", "+OK\r\n", NULL},
        {"client no-touch off", "+OK\r\n", NULL},
        {"client reply x", "-ERR syntax error\r\n", NULL},
        {"client reply on", "+OK\r\n", NULL},
        /* SETINFO is of Redis 7.2. */
        {"client setinfo LIB-NAME redis-py", "+OK\r\n", NULL},
        {"client setinfo lib-ver 1.2.3", "+OK\r\n", NULL},
        {"client setinfo lib-name a~b", "-ERR lib-name cannot contain spaces, newlines or special characters.\r\n", NULL},
        {"client setinfo LIB-VER a$b", "-ERR LIB-VER cannot contain spaces, newlines or special characters.\r\n", NULL},
        {"client setinfo foo x", "-ERR Unrecognized option 'foo'\r\n", NULL},
        {"client setinfo lib-name", "-ERR wrong number of arguments for 'client|setinfo' command\r\n", NULL},
        {"client list type foo", "-ERR Unknown client type 'foo'\r\n", NULL},
        {"client list type pubsub", "$0\r\n\r\n", "=4\r\ntxt:\r\n"},
        {"client list type master", "$0\r\n\r\n", "=4\r\ntxt:\r\n"},
        {"client list id x", "-ERR Invalid client ID\r\n", NULL},
        {"client list id 7777", "$0\r\n\r\n", "=4\r\ntxt:\r\n"},
        {"client list foo", "-ERR syntax error\r\n", NULL},
        {"client list id", "-ERR syntax error\r\n", NULL},
        {"client list type", "-ERR syntax error\r\n", NULL},
        {"client list type normal x", "-ERR syntax error\r\n", NULL},
        {"client foo", "-ERR unknown subcommand 'foo'. Try CLIENT HELP.\r\n", NULL},
        {"client", "-ERR wrong number of arguments for 'client' command\r\n", NULL},
        {"client setname", "-ERR wrong number of arguments for 'client|setname' command\r\n", NULL});
    cr_expect_str_eq(fixture->session.library, "redis-py");
    cr_expect_str_eq(fixture->session.library_version, "1.2.3");
    fixture_destroy(&fixture);
}

Test(session, client_maint_notifications_are_for_resp3)
{
    static const struct {
        const char *words;
        char reply; /* of RESP3 */
        enum session_moving moving;
    } cases[] = {
        {"client maint_notifications on", '+', MOVING_NO_ENDPOINT},
        {"client MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip", '+', MOVING_ENDPOINT},
        {"client maint_notifications on MOVING-ENDPOINT-TYPE none", '+', MOVING_NO_ENDPOINT},
        {"client maint_notifications on moving-endpoint-type internal-fqdn", '+', MOVING_ENDPOINT},
        {"client maint_notifications on moving-endpoint-type external-ip", '+', MOVING_ENDPOINT},
        {"client maint_notifications on moving-endpoint-type External-FQDN", '+', MOVING_ENDPOINT},
        {"client maint_notifications off", '+', MOVING_OFF},
        {"client maint_notifications", '-', MOVING_OFF},
        {"client maint_notifications perhaps", '-', MOVING_OFF},
        {"client maint_notifications on moving-endpoint-type", '-', MOVING_OFF},
        {"client maint_notifications on moving-endpoint-type _", '-', MOVING_OFF},
        {"client maint_notifications on moving-endpoint-type elsewhere", '-', MOVING_OFF},
        {"client maint_notifications on moving-endpoint none", '-', MOVING_OFF},
        {"client maint_notifications on moving-endpoint-type none none", '-', MOVING_OFF},
        {"client maint_notifications off moving-endpoint-type none", '-', MOVING_OFF},
    };
    struct fixture *fixture = fixture_create();
    for (int protocol = 2; protocol <= 3; protocol++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            fixture->session.protocol = (uint8_t)protocol;
            fixture->session.moving = MOVING_OFF;
            bool is_refused = protocol == 2 && cases[i].moving != MOVING_OFF;
            const char *reply = run(fixture, cases[i].words);
            cr_expect_eq(reply[0], is_refused ? '-' : cases[i].reply, "%s: %s", cases[i].words, reply);
            cr_expect(is_one_reply(fixture));
            cr_expect_eq(fixture->session.moving, is_refused ? MOVING_OFF : cases[i].moving, "%s", cases[i].words);
        }
    }
    /* Where no place can be named, one that would take its own is still told. */
    fixture->has_no_endpoint = true;
    cr_expect_eq(run(fixture, "client maint_notifications on moving-endpoint-type external-ip")[0], '-');
    cr_expect_eq(fixture->session.moving, MOVING_OFF);
    cr_expect_str_eq(run(fixture, "client maint_notifications on moving-endpoint-type none"), "+OK\r\n");
    cr_expect_str_eq(run(fixture, "client maint_notifications off"), "+OK\r\n");
    cr_expect_eq(fixture->session.moving, MOVING_OFF);
    fixture_destroy(&fixture);
}

Test(session, client_texts_are_bounded)
{
    struct fixture *fixture = fixture_create();
    char words[SESSION_TEXT_MAX + 64];
    static const char *const heads[] = {"client setname ", "hello 2 setname ", "client setinfo lib-name ", "client setinfo lib-ver "};
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        int head = snprintf(words, sizeof(words), "%s", heads[i]);
        memset(words + head, 'n', SESSION_TEXT_MAX + 1);
        words[head + SESSION_TEXT_MAX + 1] = 0;
        cr_expect_eq(run(fixture, words)[0], '-', "%s", heads[i]);
        words[head + SESSION_TEXT_MAX] = 0;
        cr_expect_neq(run(fixture, words)[0], '-', "%s", heads[i]);
    }
    cr_expect_eq(strlen(fixture->session.name), SESSION_TEXT_MAX);
    cr_expect_not_null(run(fixture, "client info"));
    cr_expect(is_one_reply(fixture));
    fixture_destroy(&fixture);
}

Test(session, client_info_tells_what_is_known)
{
    struct fixture *fixture = fixture_create();
    fixture->session.last_command_ms = 1500;
    fixture->env.now_ms = 5500;
    const char *expected = "id=42 addr=127.0.0.1:1234 laddr=127.0.0.1:6380 fd=-1 name= age=4 idle=0 flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 qbuf=11 qbuf-free=22 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=33 omem=44 "
                           "tot-mem=55 events=r cmd=client|info user=default redir=-1 resp=2 lib-name= lib-ver=\n";
    char reply[1024];
    (void)snprintf(reply, sizeof(reply), "$%zu\r\n%s\r\n", strlen(expected), expected);
    cr_expect_str_eq(run(fixture, "client info"), reply);
    (void)run(fixture, "hello 3 setname me");
    (void)run(fixture, "client setinfo lib-name lib");
    (void)run(fixture, "client setinfo lib-ver 7");
    (void)run(fixture, "client no-evict on");
    (void)run(fixture, "client no-touch on");
    const char *text = run(fixture, "client info");
    static const char *const parts[] = {" name=me ", " flags=eT ", " resp=3 ", " lib-name=lib lib-ver=7\n", "txt:id=42 "};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        cr_expect_not_null(strstr(text, parts[i]), "%s in %s", parts[i], text);
    cr_expect_eq(text[0], '=');
    fixture_destroy(&fixture);
}

Test(session, line_of_an_idle_connection_shows_its_last_command)
{
    struct fixture *fixture = fixture_create();
    struct session other;
    session_init(&other, 43, 9000);
    struct resp_writer text;
    resp_writer_init(&text, 2);
    session_write_line(&other, &fixture->env, "p", "l", &(struct session_memory){.total = 77}, &text);
    resp_write_raw(&text, "", 1);
    cr_expect_not_null(strstr((const char *)text.data, " age=0 idle=0 "), "a session younger than the clock that was read");
    cr_expect_not_null(strstr((const char *)text.data, " cmd=NULL "));
    resp_writer_reset(&text, 2);
    other.last_command = COMMAND_config__get;
    fixture->env.now_ms = 12999;
    session_write_line(&other, &fixture->env, "p", "l", &(struct session_memory){.total = 77}, &text);
    resp_write_raw(&text, "", 1);
    cr_expect_not_null(strstr((const char *)text.data, " age=3 idle=3 "));
    cr_expect_not_null(strstr((const char *)text.data, " cmd=config|get "));
    resp_writer_fini(&text);
    session_fini(&other);
    fixture_destroy(&fixture);
}

Test(session, client_list_filters_by_id_and_type)
{
    struct fixture *fixture = fixture_create();
    fixture->list_text = "id=7 a\nid=42 b\nid=421 c\nid=9 d";
    EXPECT_EXCHANGES(fixture,
        {"client list", "$30\r\nid=7 a\nid=42 b\nid=421 c\nid=9 d\r\n", "=34\r\ntxt:id=7 a\nid=42 b\nid=421 c\nid=9 d\r\n"},
        {"client list type normal", "$30\r\nid=7 a\nid=42 b\nid=421 c\nid=9 d\r\n", "=34\r\ntxt:id=7 a\nid=42 b\nid=421 c\nid=9 d\r\n"},
        {"client list id 42", "$8\r\nid=42 b\n\r\n", "=12\r\ntxt:id=42 b\n\r\n"},
        {"client list id 9 7", "$13\r\nid=7 a\nid=9 d\r\n", "=17\r\ntxt:id=7 a\nid=9 d\r\n"},
        {"client list id -42 0", "$0\r\n\r\n", "=4\r\ntxt:\r\n"});
    fixture_destroy(&fixture);
}

Test(session, client_reply_off_silences_all_but_on)
{
    struct fixture *fixture = fixture_create();
    cr_expect_str_eq(run(fixture, "client reply off"), "");
    cr_expect_eq(fixture->result, SESSION_NO_REPLY);
    cr_expect_eq(fixture->session.reply_mode, REPLY_OFF);
    static const char *const silent[] = {"ping", "echo a", "client reply skip", "ping", "client reply off", "client reply x", "hello 9", "info", "command"};
    for (size_t i = 0; i < sizeof(silent) / sizeof(silent[0]); i++) {
        cr_expect_str_eq(run(fixture, silent[i]), "", "%s", silent[i]);
        cr_expect_eq(fixture->result, SESSION_NO_REPLY, "%s", silent[i]);
        cr_expect_eq(fixture->session.reply_mode, REPLY_OFF, "%s", silent[i]);
    }
    cr_expect_not(session_takes_reply(&fixture->session));
    cr_expect_str_eq(run(fixture, "client reply on"), "+OK\r\n");
    cr_expect_eq(fixture->result, SESSION_REPLY);
    cr_expect_str_eq(run(fixture, "ping"), "+PONG\r\n");
    cr_expect(session_takes_reply(&fixture->session));
    fixture_destroy(&fixture);
}

Test(session, client_reply_skip_silences_one_command)
{
    struct fixture *fixture = fixture_create();
    cr_expect_str_eq(run(fixture, "client reply skip"), "");
    cr_expect_eq(fixture->result, SESSION_NO_REPLY);
    cr_expect_str_eq(run(fixture, "ping"), "");
    cr_expect_eq(fixture->result, SESSION_NO_REPLY);
    cr_expect_str_eq(run(fixture, "ping"), "+PONG\r\n");
    /* A forwarded command uses it up as well. */
    (void)run(fixture, "client reply skip");
    cr_expect_not(session_takes_reply(&fixture->session));
    cr_expect(session_takes_reply(&fixture->session));
    /* ON right behind SKIP is answered. */
    (void)run(fixture, "client reply skip");
    cr_expect_str_eq(run(fixture, "client reply on"), "+OK\r\n");
    cr_expect_str_eq(run(fixture, "ping"), "+PONG\r\n");
    /* SKIP right behind SKIP goes on. */
    (void)run(fixture, "client reply skip");
    cr_expect_str_eq(run(fixture, "client reply skip"), "");
    cr_expect_str_eq(run(fixture, "ping"), "");
    cr_expect_str_eq(run(fixture, "ping"), "+PONG\r\n");
    fixture_destroy(&fixture);
}

Test(session, execute_keeps_earlier_replies_in_the_writer)
{
    struct fixture *fixture = fixture_create();
    struct command_args args = fixture_args(fixture, "ping");
    const struct command *ping = command_table_at(fixture->table, COMMAND_ping);
    resp_write_simple(&fixture->writer, "BEFORE");
    cr_expect_eq(session_execute(&fixture->session, &fixture->env, ping, &args, &fixture->writer), SESSION_REPLY);
    cr_expect(fixture->writer.length == 16 && memcmp(fixture->writer.data, "+BEFORE\r\n+PONG\r\n", 16) == 0);
    fixture->session.reply_mode = REPLY_OFF;
    cr_expect_eq(session_execute(&fixture->session, &fixture->env, ping, &args, &fixture->writer), SESSION_NO_REPLY);
    cr_expect_eq(fixture->writer.length, 16);
    cr_expect_eq(fixture->session.last_command, COMMAND_ping);
    fixture_destroy(&fixture);
}

/* ---- COMMAND ---- */

#define GET_2 \
    "*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*3\r\n+@read\r\n+@string\r\n+@fast\r\n*0\r\n*1\r\n*6\r\n$5\r\nflags\r\n*2\r\n+RO\r\n+access\r\n" \
    "$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:1\r\n$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n" \
    "$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n*0\r\n"
#define GET_3 \
    "*10\r\n$3\r\nget\r\n:2\r\n~2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n~3\r\n+@read\r\n+@string\r\n+@fast\r\n~0\r\n~1\r\n%3\r\n$5\r\nflags\r\n~2\r\n+RO\r\n+access\r\n" \
    "$12\r\nbegin_search\r\n%2\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n%1\r\n$5\r\nindex\r\n:1\r\n$9\r\nfind_keys\r\n%2\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n%3\r\n" \
    "$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n~0\r\n"

Test(session, command_subcommands_answer_as_redis)
{
    struct fixture *fixture = fixture_create();
    EXPECT_EXCHANGES(fixture,
        {"command count", ":240\r\n", NULL},
        {"command info get", "*1\r\n" GET_2, "*1\r\n" GET_3},
        {"command info nosuch GET", "*2\r\n$-1\r\n" GET_2, "*2\r\n_\r\n" GET_3},
        {"command info nosuch|x get|x config|nosuch config|", "*4\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n", "*4\r\n_\r\n_\r\n_\r\n_\r\n"},
        {"command info _", "*1\r\n$-1\r\n", "*1\r\n_\r\n"},
        {"command info config|get", "*1\r\n*10\r\n$10\r\nconfig|get\r\n:-3\r\n*4\r\n+admin\r\n+noscript\r\n+loading\r\n+stale\r\n:0\r\n:0\r\n:0\r\n*3\r\n+@admin\r\n+@slow\r\n+@dangerous\r\n*0\r\n*0\r\n*0\r\n",
            "*1\r\n*10\r\n$10\r\nconfig|get\r\n:-3\r\n~4\r\n+admin\r\n+noscript\r\n+loading\r\n+stale\r\n:0\r\n:0\r\n:0\r\n~3\r\n+@admin\r\n+@slow\r\n+@dangerous\r\n~0\r\n~0\r\n~0\r\n"},
        {"command list filterby pattern xr*", "*4\r\n$6\r\nxrange\r\n$5\r\nxread\r\n$10\r\nxreadgroup\r\n$9\r\nxrevrange\r\n", NULL},
        {"command list filterby PATTERN XGROUP|Create", "*1\r\n$13\r\nxgroup|create\r\n", NULL},
        {"command list filterby module x", "*0\r\n", NULL},
        {"command list filterby aclcat nosuch", "*0\r\n", NULL},
        {"command list filterby", "-ERR syntax error\r\n", NULL},
        {"command list foo", "-ERR syntax error\r\n", NULL},
        {"command list filterby foo bar", "-ERR syntax error\r\n", NULL},
        {"command list filterby pattern a b", "-ERR syntax error\r\n", NULL},
        {"command docs nosuch", "*0\r\n", "%0\r\n"},
        {"command docs get|x", "*0\r\n", "%0\r\n"},
        {"command getkeys", "-ERR wrong number of arguments for 'command|getkeys' command\r\n", NULL},
        {"command getkeys get", "-ERR wrong number of arguments for 'command|getkeys' command\r\n", NULL},
        {"command getkeys set a b", "*1\r\n$1\r\na\r\n", NULL},
        {"command getkeys spublish a b", "-ERR The command has no key arguments\r\n", NULL},
        {"command getkeys nosuch a", "-ERR Invalid command specified\r\n", NULL},
        {"command foo", "-ERR unknown subcommand 'foo'. Try COMMAND HELP.\r\n", NULL});
    fixture_destroy(&fixture);
}

Test(session, command_getkeys_many_keys_are_all_given)
{
    struct fixture *fixture = fixture_create();
    char words[8192];
    int length = snprintf(words, sizeof(words), "command getkeys mget");
    for (int i = 0; i < 1000; i++)
        length += snprintf(words + length, sizeof(words) - (size_t)length, " k%03d", i);
    const char *reply = run(fixture, words);
    cr_expect_eq(strncmp(reply, "*1000\r\n$4\r\nk000\r\n", 17), 0);
    cr_expect(is_one_reply(fixture));
    cr_expect_not_null(strstr(reply, "$4\r\nk999\r\n"));
    fixture_destroy(&fixture);
}

Test(session, command_lists_are_whole)
{
    struct fixture *fixture = fixture_create();
    static const struct {
        const char *words;
        const char *head_2, *head_3;
    } calls[] = {{"command", "*240\r\n*10\r\n", "*240\r\n*10\r\n"}, {"command info", "*240\r\n*10\r\n", "*240\r\n*10\r\n"}, {"command docs", "*480\r\n", "%240\r\n"}, {"command docs get set", "*4\r\n$3\r\nget\r\n", "%2\r\n$3\r\nget\r\n"},
        {"command list", "*369\r\n", "*369\r\n"}, {"command list filterby aclcat GEO", "*10\r\n", "*10\r\n"}, {"command docs config|get", "*2\r\n$10\r\nconfig|get\r\n", "%1\r\n$10\r\nconfig|get\r\n"}};
    for (uint8_t protocol = 2; protocol <= 3; protocol++) {
        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
            fixture->session.protocol = protocol;
            const char *head = protocol == 2 ? calls[i].head_2 : calls[i].head_3;
            cr_expect_eq(strncmp(run(fixture, calls[i].words), head, strlen(head)), 0, "%s: %.40s", calls[i].words, (const char *)fixture->writer.data);
            cr_expect(is_one_reply(fixture), "%s", calls[i].words);
        }
    }
    cr_expect_eq(command_table_count(fixture->table), 369);
    fixture_destroy(&fixture);
}

Test(session, command_reply_of_the_backend_is_handed_on)
{
    struct fixture *fixture = fixture_create();
    fixture->backend_reply = "*1\r\n+commands\r\n";
    fixture->backend_docs = "%1\r\n+docs\r\n+x\r\n";
    cr_expect_str_eq(run(fixture, "command"), fixture->backend_reply);
    cr_expect_eq(fixture->asked_protocol, 2);
    fixture->session.protocol = 3;
    cr_expect_str_eq(run(fixture, "command docs"), fixture->backend_docs);
    cr_expect_eq(fixture->asked_protocol, 3);
    /* With names the gateway answers from its own table. */
    cr_expect_eq(strncmp(run(fixture, "command docs get"), "%1\r\n$3\r\nget\r\n", 13), 0);
    cr_expect_str_eq(run(fixture, "command count"), ":240\r\n");
    fixture_destroy(&fixture);
}

/* ---- INFO and CONFIG ---- */

static bool has_line(const char *text, const char *line)
{
    char bounded[256];
    (void)snprintf(bounded, sizeof(bounded), "\n%s\r\n", line);
    return strstr(text, bounded) != NULL;
}

Test(session, info_default_has_what_clients_look_for)
{
    struct fixture *fixture = fixture_create();
    const char *text = run(fixture, "info");
    static const char *const lines[] = {"redis_version:7.0.15", "redis_mode:standalone", "cluster_enabled:0", "loading:0", "role:master", "connected_clients:7", "maxmemory:0", "# Server", "# Clients", "# Memory", "# Persistence", "# Stats",
        "# Replication", "# CPU", "# Cluster", "# Keyspace", "server_time_usec:1700000000123456"};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        cr_expect(has_line(text, lines[i]), "%s", lines[i]);
    cr_expect_null(strstr(text, "# Commandstats"));
    cr_expect_str_eq(fixture->sections, "server clients memory persistence stats replication cpu cluster keyspace zgateway ");
    cr_expect(text[0] == '$' && is_one_reply(fixture));
    fixture->env.present_cluster = true;
    fixture->env.is_ready = false;
    fixture->session.protocol = 3;
    fixture->sections[0] = 0;
    text = run(fixture, "info");
    static const char *const other_lines[] = {"redis_mode:cluster", "cluster_enabled:1", "loading:1"};
    for (size_t i = 0; i < sizeof(other_lines) / sizeof(other_lines[0]); i++)
        cr_expect(has_line(text, other_lines[i]), "%s", other_lines[i]);
    cr_expect(text[0] == '=' && is_one_reply(fixture));
    fixture_destroy(&fixture);
}

Test(session, info_sections_answer_as_redis)
{
    struct fixture *fixture = fixture_create();
    EXPECT_EXCHANGES(fixture,
        {"info cluster", "$30\r\n# Cluster\r\ncluster_enabled:0\r\n\r\n", "=34\r\ntxt:# Cluster\r\ncluster_enabled:0\r\n\r\n"},
        {"info KEYSPACE cluster nosuch", "$44\r\n# Cluster\r\ncluster_enabled:0\r\n\r\n# Keyspace\r\n\r\n", "=48\r\ntxt:# Cluster\r\ncluster_enabled:0\r\n\r\n# Keyspace\r\n\r\n"},
        {"info cluster cluster", "$30\r\n# Cluster\r\ncluster_enabled:0\r\n\r\n", "=34\r\ntxt:# Cluster\r\ncluster_enabled:0\r\n\r\n"},
        {"info nosuch", "$0\r\n\r\n", "=4\r\ntxt:\r\n"});
    fixture->session.protocol = 2;
    static const char *const wide[] = {"info all", "info everything", "info default commandstats"};
    for (size_t i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
        fixture->sections[0] = 0;
        cr_expect_not_null(strstr(run(fixture, wide[i]), "# Commandstats\r\n"), "%s", wide[i]);
        cr_expect_str_eq(fixture->sections, "server clients memory persistence stats replication cpu commandstats cluster keyspace zgateway ");
    }
    cr_expect_null(strstr(run(fixture, "info default"), "# Commandstats"));
    fixture_destroy(&fixture);
}

Test(session, config_get_short_list)
{
    struct fixture *fixture = fixture_create();
    EXPECT_EXCHANGES(fixture,
        {"config get save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n", "%1\r\n$4\r\nsave\r\n$0\r\n\r\n"},
        {"config get SAVE", "*2\r\n$4\r\nSAVE\r\n$0\r\n\r\n", "%1\r\n$4\r\nSAVE\r\n$0\r\n\r\n"},
        {"config get appendonly", "*2\r\n$10\r\nappendonly\r\n$2\r\nno\r\n", "%1\r\n$10\r\nappendonly\r\n$2\r\nno\r\n"},
        {"config get nosuch", "*0\r\n", "%0\r\n"},
        {"config get Proto-Max*", "*2\r\n$18\r\nproto-max-bulk-len\r\n$9\r\n536870912\r\n", "%1\r\n$18\r\nproto-max-bulk-len\r\n$9\r\n536870912\r\n"},
        /* The server lists these in the order of a hash table. */
        {"config get timeout save nosuch timeout", "*4\r\n$4\r\nsave\r\n$0\r\n\r\n$7\r\ntimeout\r\n$1\r\n0\r\n", "%2\r\n$4\r\nsave\r\n$0\r\n\r\n$7\r\ntimeout\r\n$1\r\n0\r\n"},
        {"config get *-read-only", "*4\r\n$17\r\nreplica-read-only\r\n$3\r\nyes\r\n$15\r\nslave-read-only\r\n$3\r\nyes\r\n", "%2\r\n$17\r\nreplica-read-only\r\n$3\r\nyes\r\n$15\r\nslave-read-only\r\n$3\r\nyes\r\n"},
        /* Only one database can be selected. */
        {"config get databases", "*2\r\n$9\r\ndatabases\r\n$1\r\n1\r\n", "%1\r\n$9\r\ndatabases\r\n$1\r\n1\r\n"},
        {"config get", "-ERR wrong number of arguments for 'config|get' command\r\n", NULL},
        {"config foo", "-ERR unknown subcommand 'foo'. Try CONFIG HELP.\r\n", NULL});
    fixture->session.protocol = 3;
    cr_expect_eq(strncmp(run(fixture, "config get *"), "%8\r\n", 4), 0);
    cr_expect(is_one_reply(fixture));
    fixture_destroy(&fixture);
}

/* Patterns are looked at through COMMAND LIST, whose names are known. */
Test(session, patterns_match_as_globs)
{
    static const struct {
        const char *pattern;
        const char *only; /* the one name that matches, NULL: none */
    } patterns[] = {{"get", "get"}, {"GE[T]", "get"}, {"ge[a-f]", NULL}, {"hg?t", "hget"}, {"hmge[^a]", "hmget"}, {"x*o*u*d*l*", "xgroup|delconsumer"}, {"*|keyslot", "cluster|keyslot"}, {"[b-z]revrangebylex", "zrevrangebylex"},
        {"ge\\t", "get"}, {"get\\", NULL}, {"[", NULL}, {"get[", NULL}, {"hge[t", "hget"}, {"?????????????????????????", NULL}, {"flushal[l]*", "flushall"}, {"***echo***", "echo"},
        {"[^e]cho", NULL}, {"ech[\\o]", "echo"}, {"_", NULL}, {"e[]cho", NULL}, {"dump**", "dump"}, {"[z-a]ump", "dump"}};
    struct fixture *fixture = fixture_create();
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        char words[128], expected[128] = "*0\r\n";
        (void)snprintf(words, sizeof(words), "command list filterby pattern %s", patterns[i].pattern);
        if (patterns[i].only != NULL)
            (void)snprintf(expected, sizeof(expected), "*1\r\n$%zu\r\n%s\r\n", strlen(patterns[i].only), patterns[i].only);
        cr_expect_str_eq(run(fixture, words), expected, "%s", patterns[i].pattern);
    }
    fixture_destroy(&fixture);
}

Test(session, pattern_of_many_stars_ends_soon)
{
    struct fixture *fixture = fixture_create();
    char words[4096] = "config get ";
    for (int i = 0; i < 1000; i++)
        strcat(words, "*a");
    cr_expect_str_eq(run(fixture, words), "*0\r\n");
    fixture_destroy(&fixture);
}

/* ---- HELP ---- */

Test(session, help_lists_what_is_served)
{
    struct fixture *fixture = fixture_create();
    cr_expect_str_eq(run(fixture, "config help"), "*3\r\n+CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n+GET\r\n+HELP\r\n");
    const char *text = run(fixture, "client help");
    cr_expect(is_one_reply(fixture));
    cr_expect_not_null(strstr(text, "+SETNAME\r\n"));
    cr_expect_null(strstr(text, "TRACKING"));
    static const char *const others[] = {"command help", "cluster help", "object help", "xgroup help", "xinfo help", "memory help"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        cr_expect(run(fixture, others[i])[0] == '*' && is_one_reply(fixture), "%s", others[i]);
    fixture_destroy(&fixture);
}

/* ---- errors ---- */

Test(session, unknown_commands_are_told_as_redis)
{
    struct fixture *fixture = fixture_create();
    EXPECT_EXCHANGES(fixture,
        {"nosuch", "-ERR unknown command 'nosuch', with args beginning with: \r\n", NULL},
        {"NoSuch a b c", "-ERR unknown command 'NoSuch', with args beginning with: 'a' 'b' 'c' \r\n", NULL},
        {"sentinel masters", "-ERR unknown command 'sentinel', with args beginning with: 'masters' \r\n", NULL},
        {"_ a", "-ERR unknown command '', with args beginning with: 'a' \r\n", NULL},
        {"no$such a$b", "-ERR unknown command 'no such', with args beginning with: 'a b' \r\n", NULL},
        {"cluster nosuch", "-ERR unknown subcommand 'nosuch'. Try CLUSTER HELP.\r\n", NULL},
        {"object _", "-ERR unknown subcommand ''. Try OBJECT HELP.\r\n", NULL});
    fixture_destroy(&fixture);
}

/* Recorded: the text of 128 bytes of name and 128 bytes of arguments, each argument cut to what is left. */
Test(session, unknown_commands_with_long_arguments_are_cut_as_redis)
{
    struct fixture *fixture = fixture_create();
    char words[2048], expected[2048], many[600] = "";
    memset(many, 'x', 300);
    (void)snprintf(words, sizeof(words), "%s %s b", many, many);
    (void)snprintf(expected, sizeof(expected), "-ERR unknown command '%.128s', with args beginning with: '%.128s' \r\n", many, many);
    cr_expect_str_eq(run(fixture, words), expected);
    (void)snprintf(words, sizeof(words), "nosuch %.100s %.100s c", many, many);
    (void)snprintf(expected, sizeof(expected), "-ERR unknown command 'nosuch', with args beginning with: '%.100s' '%.25s' \r\n", many, many);
    cr_expect_str_eq(run(fixture, words), expected);
    int length = snprintf(words, sizeof(words), "nosuch");
    for (int i = 0; i < 200; i++)
        length += snprintf(words + length, sizeof(words) - (size_t)length, " a");
    length = snprintf(expected, sizeof(expected), "-ERR unknown command 'nosuch', with args beginning with: ");
    for (int i = 0; i < 32; i++)
        length += snprintf(expected + length, sizeof(expected) - (size_t)length, "'a' ");
    (void)snprintf(expected + length, sizeof(expected) - (size_t)length, "\r\n");
    cr_expect_str_eq(run(fixture, words), expected);
    length = snprintf(words, sizeof(words), "nosuch");
    for (int i = 0; i < 200; i++)
        length += snprintf(words + length, sizeof(words) - (size_t)length, " _");
    cr_expect_eq(run(fixture, words)[0], '-');
    fixture_destroy(&fixture);
}

Test(session, refusals_name_the_command)
{
    struct fixture *fixture = fixture_create();
    EXPECT_EXCHANGES(fixture,
        {"multi", "-ERR 'multi' is not supported by this version of the gateway\r\n", NULL},
        {"BLPOP a 0", "-ERR 'blpop' is not supported by this version of the gateway\r\n", NULL},
        {"client tracking on", "-ERR 'client|tracking' is not supported by this version of the gateway\r\n", NULL},
        {"debug sleep", "-ERR 'debug' is not allowed through the gateway\r\n", NULL},
        {"CONFIG SET a b", "-ERR 'config|set' is not allowed through the gateway\r\n", NULL},
        {"xread BLOCK 0 STREAMS a 0", "-ERR 'xread' with BLOCK is not supported by this version of the gateway\r\n", NULL},
        {"sort a BY w_*", "-ERR 'sort' with BY or GET patterns is not supported by this version of the gateway\r\n", NULL},
        {"sort_ro a GET *", "-ERR 'sort_ro' with BY or GET patterns is not supported by this version of the gateway\r\n", NULL},
        {"get a b", "-ERR wrong number of arguments for 'get' command\r\n", NULL},
        {"get a", "+FORWARDED\r\n", NULL});
    fixture_destroy(&fixture);
}

/* Every local command with its least number of arguments, one and two more: exactly one well-formed reply, and nothing read outside the
 * arguments. */
Test(session, local_commands_with_any_arguments_give_one_reply)
{
    static const char *const fills[] = {"x", "_", "0", "3", "on", "-1", "type"};
    struct fixture *fixture = fixture_create();
    for (uint16_t i = 0; i < command_table_count(fixture->table); i++) {
        const struct command *row = command_table_at(fixture->table, i);
        if (row->handling != HANDLE_LOCAL)
            continue;
        for (int extra = 0; extra < 4; extra++) {
            for (size_t fill = 0; fill < sizeof(fills) / sizeof(fills[0]); fill++) {
                char words[256], name[COMMAND_NAME_MAX * 2];
                (void)command_full_name(row, name);
                char *bar = strchr(name, '|');
                int given = bar == NULL ? 1 : 2;
                if (bar != NULL)
                    *bar = ' ';
                int length = snprintf(words, sizeof(words), "%s", name);
                for (int k = given; k < abs(row->arity) + extra; k++)
                    length += snprintf(words + length, sizeof(words) - (size_t)length, " %s", fills[fill]);
                (void)run(fixture, words);
                cr_expect(fixture->result == SESSION_NO_REPLY || is_one_reply(fixture), "%s", words);
                fixture->session.reply_mode = REPLY_ON;
            }
        }
    }
    fixture_destroy(&fixture);
}
