-- name: grant_insert
-- The same rule in the same place is one grant.
INSERT INTO grants (owner, rule, conversation, given_at, given_by) SELECT :owner::text, :rule::text, :conversation::bigint, :at::double precision, :given_by::text
 WHERE NOT EXISTS (SELECT 1 FROM grants WHERE owner = :owner AND rule = :rule AND conversation IS NOT DISTINCT FROM :conversation::bigint);

-- name: grant_get
SELECT g.id, g.owner, g.rule, c.id, g.given_at, g.given_by
  FROM grants g LEFT JOIN conversations c ON c.key = g.conversation
 WHERE g.owner = :owner AND g.rule = :rule AND g.conversation IS NOT DISTINCT FROM :conversation::bigint;
