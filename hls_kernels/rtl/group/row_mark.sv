// Whether any lane of any word of a row has a mark.
module row_mark (
    input wire clk,
    input wire valid,
    input wire first,
    input wire last,
    input wire [15:0] marks,
    output wire out_valid,
    output reg out
);
    wire any, valid_any, first_any, last_any;

    or_tree #(.WIDTH(1)) tree (.clk(clk), .values(marks), .out(any));
    delay #(.WIDTH(3), .DEPTH(latency::OR_TREE)) beside_tree (
        .clk(clk), .in({valid, first, last}), .out({valid_any, first_any, last_any}));
    always @(posedge clk) if (valid_any) out <= any | (out & ~first_any);
    delay #(.WIDTH(1), .DEPTH(1)) for_end (
        .clk(clk), .in(valid_any & last_any), .out(out_valid));
endmodule
