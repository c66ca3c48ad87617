package relay

// TransactionalID is for tests that publish as a member would.
var TransactionalID = transactionalID
